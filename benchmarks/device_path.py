"""Parts of the device path on host memory: planning, copies by piece size, and the start of a region."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.device import CanonicalKVCacheRef, HostCopyEngine
from tiering.device.sub_blocks import IntArray
from tiering.device.transfer_plan import TransferPlanner
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["measure"]

_NUM_CHUNKS = 512
_NUM_TENSORS = 64
_PIECE_BYTES = (512, 4 * 2**10, 16 * 2**10, 256 * 2**10, 4 * 2**20)


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure each part against the plain way of doing it."""
    yield _planning(scale)
    for piece_bytes in _PIECE_BYTES:
        yield from _copying(scale, piece_bytes)
    yield _populating(scale)


def _planning(scale: Scale) -> Comparison:
    page = 64
    device = [torch.zeros((2 * _NUM_CHUNKS, page), dtype=torch.int8) for _ in range(_NUM_TENSORS)]
    rows = [torch.zeros((2 * _NUM_CHUNKS, page), dtype=torch.int8) for _ in range(_NUM_TENSORS)]
    planner = TransferPlanner(device, rows, [[CanonicalKVCacheRef(i, page) for i in range(_NUM_TENSORS)]], 1)
    rng = np.random.default_rng(1)
    block_ids, row_ids = (rng.permutation(2 * _NUM_CHUNKS)[:_NUM_CHUNKS] for _ in range(2))
    specs = (GPULoadStoreSpec(block_ids, [_NUM_CHUNKS], [0]), CPULoadStoreSpec(row_ids))

    def by_loop() -> list[tuple[int, int, int]]:
        return [
            (gpu.data_ptr() + int(block) * gpu.stride(0), cpu.data_ptr() + int(row) * cpu.stride(0), page)
            for gpu, cpu in zip(device, rows, strict=True)
            for block, row in zip(block_ids, row_ids, strict=True)
        ]

    pieces = planner.plan(*specs)
    planned = zip(pieces.device_ptrs.tolist(), pieces.row_ptrs.tolist(), pieces.sizes.tolist(), strict=True)
    check(sorted(planned) == sorted(by_loop()), "the plan")
    ours, others = alternate(scale.rounds, partial(_seconds, partial(planner.plan, *specs)), partial(_seconds, by_loop))
    case = f"plan {_NUM_CHUNKS} chunks of {_NUM_TENSORS} tensors"
    return Comparison(case, "a loop in Python", "ms", ours * 1e3, others * 1e3, ours / others)


def _copying(scale: Scale, piece_bytes: int) -> Iterator[Comparison]:
    num_pieces = min(scale.moved_bytes // piece_bytes, 2**16)
    num_bytes = num_pieces * piece_bytes
    rng = np.random.default_rng(2)
    source = rng.integers(0, 256, num_bytes, dtype=np.uint8)
    target = np.zeros_like(source)
    src = source.ctypes.data + rng.permutation(num_pieces) * piece_bytes
    dst = target.ctypes.data + rng.permutation(num_pieces) * piece_bytes
    sizes = np.full(num_pieces, piece_bytes)
    engine = HostCopyEngine()

    def by_engine() -> None:
        engine.submit(1, src, dst, sizes)
        engine.wait({1})
        check(engine.poll()[0].error is None, "the copy")

    def at_once() -> None:
        ctypes.memmove(target.ctypes.data, source.ctypes.data, num_bytes)

    ways = (by_engine, at_once, partial(_call_by_call, src, dst, sizes))
    ours, at_once_seconds, by_call = alternate(scale.rounds, *(partial(_seconds, way) for way in ways))
    target.fill(0)
    by_engine()
    pairs = zip((src - source.ctypes.data).tolist(), (dst - target.ctypes.data).tolist(), strict=True)
    is_right = all(np.array_equal(source[a : a + piece_bytes], target[b : b + piece_bytes]) for a, b in pairs)
    check(is_right, f"pieces of {piece_bytes} bytes")
    engine.shutdown()
    case = f"copy {num_pieces} pieces of {piece_bytes / 1024:g} KiB"
    yield Comparison.per_byte(case, "one memcpy", num_bytes, ours, at_once_seconds)
    yield Comparison.per_byte(case, "a call per piece", num_bytes, ours, by_call)


def _populating(scale: Scale) -> Comparison:
    """Compare a region's start with its pages written one by one in a new file of the same size."""
    layout = RegionLayout(scale.moved_bytes // 2**20, 1, 2**20)

    def by_region() -> float:
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-bench-") as directory:
            began = time.perf_counter()
            region = SharedOffloadRegion(
                "bench", layout.total_bytes, layout.num_rows, 0, 1, layout.worker_page_bytes, directory=directory
            )
            seconds = time.perf_counter() - began
            region.cleanup()
        return seconds

    def by_touching() -> float:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(layout.total_bytes)
            began = time.perf_counter()
            np.memmap(file, dtype=np.uint8, mode="r+")[::4096] = 0
            return time.perf_counter() - began

    ours, others = alternate(scale.rounds, by_region, by_touching)
    return Comparison.per_byte("start a region", "touching each page", layout.total_bytes, ours, others)


def _call_by_call(src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
    for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(dst, src, size)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
