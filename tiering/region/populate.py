"""Taking the pages of a region before the first transfer: then no copy pays for page faults or meets full memory."""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import threading
from collections.abc import Iterable, Iterator, Set

import numpy as np

__all__ = ["MADV_POPULATE_WRITE", "Population"]

logger = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23
"""Linux 5.14 and later; Python's mmap module has no name for it."""

_SLICE_BYTES = 32 * 2**20

# Python's own madvise keeps the interpreter lock, and page after page is cleared under it.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Population:
    """Threads that make pages of a mapping present; no byte changes, whoever writes them meanwhile."""

    def __init__(
        self,
        mapping: mmap.mmap,
        fd: int,
        ranges: Iterable[tuple[int, int]],
        num_threads: int,
        cpus: Set[int] | None = None,
    ) -> None:
        """Start the threads.

        Args:
            mapping: of the file; stays open until `wait` has returned.
            fd: the file; likewise.
            ranges: (offset, length) in whole pages.
            num_threads: how many threads, 1 or more.
            cpus: where they run. Linux takes a page from the memory node of the thread that touches it first, so these
                should be processors near the device.
        """
        # An address only: an exported buffer would keep the mapping from being closed.
        self._address = np.frombuffer(mapping, dtype=np.uint8).ctypes.data
        self._fd = fd
        self._cpus = cpus
        self._slices = _slices(ranges)
        self._error: OSError | None = None
        self._has_warned = False
        # Guards the three fields above.
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, name="tiering-populate", daemon=True) for _ in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the threads have ended, with or without success."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self) -> None:
        """Block until all pages are present.

        Raises:
            OSError: ENOSPC where memory ran out, or what else the kernel said.
        """
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let the threads end before all is done, and wait for them."""
        with self._lock:
            self._slices = iter(())
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            if self._cpus is not None:
                os.sched_setaffinity(0, self._cpus)
            while (taken := self._take()) is not None:
                self._populate(*taken)
        except OSError as error:
            with self._lock:
                self._error = error
                self._slices = iter(())

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            return next(self._slices, None)

    def _populate(self, offset: int, length: int) -> None:
        if _madvise(self._address + offset, length, MADV_POPULATE_WRITE) == 0:
            return
        code = ctypes.get_errno()
        if code in {errno.EFAULT, errno.ENOMEM}:
            # A page could not be had; a plain access to it would have ended this process (SIGBUS).
            code = errno.ENOSPC
        if code != errno.EINVAL:
            raise OSError(code, os.strerror(code))
        self._warn_once()
        os.posix_fallocate(self._fd, offset, length)
        # Reads only: another process may already have stored into these pages, so even writing back what was read is
        # wrong.
        pages = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(self._address + offset))
        pages[:: mmap.PAGESIZE].max()

    def _warn_once(self) -> None:
        with self._lock:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("This kernel cannot populate shared pages in one call (Linux 5.14 can): a slower start.")


def _slices(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for offset, length in ranges:
        for begin in range(offset, offset + length, _SLICE_BYTES):
            yield begin, min(_SLICE_BYTES, offset + length - begin)
