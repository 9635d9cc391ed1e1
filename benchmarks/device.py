"""Device blocks to rows and back with the host copy engine, against one large memcpy of as many bytes."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, CpuGpuOffloadingHandlers
from tiering.keys import make_offload_key
from tiering.testing import key_pattern
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["measure"]

_PAGE_SIZES = (16 * 2**10, 64 * 2**10, 2**20)
_BLOCKS_PER_ROW = 4


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure stores and loads of scattered blocks, planning included, for each page size."""
    for page_bytes in _PAGE_SIZES:
        bench = _Bench(page_bytes, scale.moved_bytes)
        try:
            seconds = alternate(scale.rounds, bench.memcpy, partial(bench.move, is_store=True), bench.load)
        finally:
            bench.close()
        for case, measured in zip(("store", "load"), seconds[1:], strict=True):
            yield Comparison.per_byte(
                f"{case}, pages of {page_bytes // 1024} KiB", "one memcpy", bench.num_bytes, measured, seconds[0]
            )


class _Bench:
    def __init__(self, page_bytes: int, num_bytes: int) -> None:
        num_rows = num_bytes // (page_bytes * _BLOCKS_PER_ROW)
        num_blocks = num_rows * _BLOCKS_PER_ROW
        self.num_bytes = num_blocks * page_bytes
        self._num_jobs = 0
        self._pages = torch.zeros((num_blocks, page_bytes), dtype=torch.int8)
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(self._pages, page_bytes)], [[CanonicalKVCacheRef(0, page_bytes)]]
        )
        self._handlers = CpuGpuOffloadingHandlers(caches, _BLOCKS_PER_ROW, num_rows)
        shuffled = np.random.default_rng(1)
        self._blocks = shuffled.permutation(num_blocks)
        self._rows = shuffled.permutation(num_rows)
        self._pattern = key_pattern(make_offload_key(b"device", 0), self.num_bytes).view(np.int8)
        self._copy = np.zeros_like(self._pattern)

    def memcpy(self) -> float:
        self._copy.fill(0)
        began = time.perf_counter()
        ctypes.memmove(self._copy.ctypes.data, self._pattern.ctypes.data, self.num_bytes)
        seconds = time.perf_counter() - began
        check(np.array_equal(self._copy, self._pattern), "memcpy")
        return seconds

    def load(self) -> float:
        """Load what was stored before."""
        self._device[:] = 0
        seconds = self.move(is_store=False)
        check(np.array_equal(self._device[self._blocks].ravel(), self._pattern), "the bytes that were loaded")
        return seconds

    def move(self, *, is_store: bool) -> float:
        self._num_jobs += 1
        blocks = GPULoadStoreSpec(self._blocks, [len(self._blocks)], [0])
        rows = CPULoadStoreSpec(self._rows)
        if is_store:
            self._device[self._blocks] = self._pattern.reshape(self._device.shape)
            self._handlers.cpu_tensors[0].zero_()
        handler = self._handlers.gpu_to_cpu_handler if is_store else self._handlers.cpu_to_gpu_handler
        began = time.perf_counter()
        handler.transfer_async(self._num_jobs, (blocks, rows) if is_store else (rows, blocks))
        handler.wait({self._num_jobs})
        seconds = time.perf_counter() - began
        (result,) = handler.get_finished()
        check(result.success and result.transfer_size == self.num_bytes, "the transfer of all bytes")
        return seconds

    def close(self) -> None:
        self._handlers.gpu_to_cpu_handler.shutdown()
        self._handlers.cpu_to_gpu_handler.shutdown()

    @property
    def _device(self) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
        return self._pages.numpy()
