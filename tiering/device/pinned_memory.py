"""Host memory that the device reaches directly: without it copies are several times slower and block their caller."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Iterable

from tiering.device.cuda_runtime import CudaRuntime

__all__ = ["PinnedMemory", "pin_memory"]

logger = logging.getLogger(__name__)


class PinnedMemory:
    """Ranges of host memory that stay pinned until the last holder has released them, or nobody knows them any more."""

    def __init__(self, runtime: CudaRuntime, addresses: list[int], memory: object) -> None:
        """Take over ranges that are pinned.

        Args:
            runtime: what pinned them.
            addresses: where each range begins.
            memory: owns them; kept alive until they are unpinned.
        """
        self._num_holders = 0
        self._unpin = weakref.finalize(self, _unpin, runtime, addresses, memory)

    def hold(self) -> PinnedMemory:
        """Count one more holder."""
        self._num_holders += 1
        return self

    def release(self) -> None:
        """Count one holder less; the last one unpins. None of its copies may be in progress any more."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self._unpin()


def pin_memory(runtime: CudaRuntime, ranges: Iterable[tuple[int, int]], memory: object) -> PinnedMemory | None:
    """Pin all (address, length) ranges, or, with one warning that says why, none of them.

    Takes about 0.1 seconds per GiB.

    Args:
        runtime: the device.
        ranges: do not overlap; a single range of some hundred GiB is refused by CUDA.
        memory: owns them; kept alive while they are pinned.
    """
    begin = time.monotonic()
    addresses: list[int] = []
    num_bytes = 0
    try:
        for address, length in ranges:
            runtime.pin(address, length)
            addresses.append(address)
            num_bytes += length
            logger.debug("pinned %.1f GiB so far", num_bytes / 2**30)
    except Exception as error:
        _unpin(runtime, addresses, memory)
        logger.warning(
            "cannot pin host memory after %.1f GiB (%s): copies work, but are slower and block the worker; raise the "
            "limit of locked memory (ulimit -l) or lower cpu_bytes_to_use",
            num_bytes / 2**30,
            error,
        )
        return None
    logger.info("pinned %.1f GiB in %.1f s, %d ranges", num_bytes / 2**30, time.monotonic() - begin, len(addresses))
    return PinnedMemory(runtime, addresses, memory)


def _unpin(runtime: CudaRuntime, addresses: list[int], memory: object) -> None:
    for address in addresses:
        try:
            runtime.unpin(address)
        except Exception as error:
            logger.warning("cannot unpin host memory at %#x: %s", address, error)
