"""Stores and loads of whole specs, byte for byte against a model in plain Python."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tiering.device import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CpuGpuOffloadingHandlers,
)
from tiering.device.transfer_plan import TransferPlanner
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.testing.fake_cuda import FakeCudaRuntime
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

CANARY = 0x5A


@dataclass(frozen=True)
class Shape:
    """One transfer: page bytes per tensor, (tensor, used bytes) per group, and the spec's numbers."""

    factor: int
    pages: list[int]
    groups: list[list[tuple[int, int]]]
    sizes: list[int]
    indices: list[int]
    num_blocks: int = 40
    num_rows: int = 25

    def rows_per_group(self) -> list[int]:
        rows = []
        for size, index in zip(self.sizes, self.indices, strict=True):
            touched = {(index % self.factor + block) // self.factor for block in range(size)}
            rows.append(len(touched))
        return rows


EXAMPLE = Shape(
    factor=4,
    pages=[48, 20, 16, 64, 8, 12, 4, 100],
    groups=[[(0, 48), (1, 20)], [(2, 16), (3, 50)], [(4, 8), (5, 12)], [(6, 3), (7, 100)]],
    sizes=[5, 3, 0, 1],
    indices=[6, 0, 2, 3],
)


def random_shape(choose: random.Random) -> Shape:
    pages = [choose.randint(1, 70) for _ in range(choose.randint(1, 5))]
    groups, sizes, indices = [], [], []
    for _ in range(choose.randint(1, 4)):
        tensors = choose.sample(range(len(pages)), choose.randint(0, len(pages)))
        groups.append([(t, choose.choice([pages[t], choose.randint(1, pages[t])])) for t in tensors])
        sizes.append(choose.choice([0, 1, choose.randint(0, 9)]))
        indices.append(choose.randint(0, 30))
    return Shape(choose.choice([1, 2, 3, 4, 8]), pages, groups, sizes, indices, num_rows=44)


def pick_ids(choose: random.Random, universe: int, count: int) -> list[int]:
    """Distinct ids, sometimes with neighbours so that pieces can be joined."""
    first = choose.randrange(universe - count + 1)
    return choose.choice([choose.sample(range(universe), count), list(range(first, first + count))])


def model_copy(shape: Shape, blocks: list[int], rows: list[int], copy_one) -> None:
    """Walk over a transfer one device block at a time."""
    block_at = row_at = 0
    counts = shape.rows_per_group()
    for group, size, index, count in zip(shape.groups, shape.sizes, shape.indices, counts, strict=True):
        for block in range(size):
            row, place = divmod(index % shape.factor + block, shape.factor)
            for tensor, used in group:
                begin = place * shape.pages[tensor]
                copy_one(tensor, blocks[block_at + block], rows[row_at + row], slice(begin, begin + used), used)
        block_at += size
        row_at += count


def device_tensors(shape: Shape, choose: random.Random) -> list[torch.Tensor]:
    content = np.random.default_rng(choose.randrange(2**32))
    shapes = [(shape.num_blocks, page) for page in shape.pages]
    return [torch.from_numpy(content.integers(-128, 128, size, dtype=np.int8)) for size in shapes]


def caches(shape: Shape, tensors: list[torch.Tensor]) -> CanonicalKVCaches:
    refs = [[CanonicalKVCacheRef(tensor, used) for tensor, used in group] for group in shape.groups]
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors], refs)


def run(handler, job_id: int, spec) -> None:
    assert handler.transfer_async(job_id, spec)
    handler.wait({job_id})
    (result,) = handler.get_finished()
    assert (result.job_id, result.success) == (job_id, True)
    assert result.transfer_type == (spec[0].medium(), spec[1].medium())


def check_round_trip(
    shape: Shape,
    choose: random.Random,
    region: SharedOffloadRegion | None = None,
    runtime: FakeCudaRuntime | None = None,
) -> None:
    tensors = device_tensors(shape, choose)
    handlers = CpuGpuOffloadingHandlers(
        caches(shape, tensors), shape.factor, shape.num_rows, region, cuda_runtime=runtime
    )
    for cpu_tensor in handlers.cpu_tensors:
        cpu_tensor.fill_(CANARY)
    blocks, targets = (pick_ids(choose, shape.num_blocks, sum(shape.sizes)) for _ in range(2))
    rows = pick_ids(choose, shape.num_rows, sum(shape.rows_per_group()))
    device = [tensor.numpy().copy() for tensor in tensors]
    cpu = [tensor.numpy().copy() for tensor in handlers.cpu_tensors]

    def store_one(tensor: int, block: int, row: int, place: slice, used: int) -> None:
        cpu[tensor][row, place] = device[tensor][block, :used]

    def load_one(tensor: int, block: int, row: int, place: slice, used: int) -> None:
        device[tensor][block, :used] = cpu[tensor][row, place]

    spec = GPULoadStoreSpec(blocks, shape.sizes, shape.indices)
    run(handlers.gpu_to_cpu_handler, 1, (spec, CPULoadStoreSpec(rows)))
    model_copy(shape, blocks, rows, store_one)
    for real, model in zip(handlers.cpu_tensors, cpu, strict=True):
        assert real.numpy().tobytes() == model.tobytes()

    for index, tensor in enumerate(tensors):
        tensor.fill_(CANARY)
        device[index][:] = CANARY
    spec = GPULoadStoreSpec(targets, shape.sizes, shape.indices)
    run(handlers.cpu_to_gpu_handler, 2, (CPULoadStoreSpec(rows), spec))
    model_copy(shape, targets, rows, load_one)
    for real, model in zip(tensors, device, strict=True):
        assert real.numpy().tobytes() == model.tobytes()
    handlers.shutdown()


@pytest.fixture
def open_region() -> Iterator:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as directory:
        regions = []

        def open_one(num_rows: int, rank: int | None, num_workers: int, page: int) -> SharedOffloadRegion:
            total = RegionLayout(num_rows, num_workers, page).total_bytes
            regions.append(SharedOffloadRegion("e", total, num_rows, rank, num_workers, page, directory=directory))
            return regions[-1]

        yield open_one
        for region in regions:
            region.cleanup()


@pytest.mark.parametrize("on_cuda", [False, True])
def test_tc_77_the_named_example_over_a_shared_region(open_region, on_cuda: bool) -> None:
    page = sum(EXAMPLE.pages) * EXAMPLE.factor
    regions = [open_region(EXAMPLE.num_rows, rank, 3, page) for rank in (0, 1, 2)]
    check_round_trip(EXAMPLE, random.Random(0), regions[1], FakeCudaRuntime() if on_cuda else None)
    rows = np.frombuffer(regions[0].create_kv_memoryview(), dtype=np.uint8).reshape(EXAMPLE.num_rows, -1)
    assert not rows[:, :page].any()
    assert not rows[:, 2 * page :].any()


def test_tc_77_five_hundred_random_shapes() -> None:
    choose = random.Random(77)
    for _ in range(500):
        check_round_trip(random_shape(choose), choose)


@pytest.mark.parametrize("can_batch", [True, False])
def test_tc_77_random_shapes_on_a_device(can_batch: bool) -> None:
    choose = random.Random(78)
    for _ in range(100):
        runtime = FakeCudaRuntime(can_batch=can_batch)
        check_round_trip(random_shape(choose), choose, runtime=runtime)
        assert runtime.pinned == {}


def test_tc_78_unequal_pages_stay_inside_the_region(open_region) -> None:
    pages, num_rows, factor = [65536, 32768, 4096], 6, 2
    column = sum(pages) * factor
    regions = [open_region(num_rows, rank, 2, column) for rank in (0, 1)]
    guard_begins = regions[0].total_size_bytes
    guard = regions[0].mmap_path.read_bytes()[guard_begins:]
    for rank, region in enumerate(regions):
        tensors = [torch.full((num_rows * factor, page), 16 * (rank + 1) + index) for index, page in enumerate(pages)]
        tensors = [tensor.to(torch.int8) for tensor in tensors]
        groups = [[CanonicalKVCacheRef(index, page)] for index, page in enumerate(pages)]
        kv_caches = CanonicalKVCaches([CanonicalKVCacheTensor(t, t.shape[1]) for t in tensors], groups)
        handlers = CpuGpuOffloadingHandlers(kv_caches, factor, num_rows, region)
        for group in range(3):
            sizes = [num_rows * factor if index == group else 0 for index in range(3)]
            spec = GPULoadStoreSpec(range(num_rows * factor), sizes, [0, 0, 0])
            run(handlers.gpu_to_cpu_handler, group, (spec, CPULoadStoreSpec(range(num_rows))))
        handlers.shutdown()
    columns = b"".join(
        bytes([16 * (rank + 1) + i]) * (page * factor) for rank in (0, 1) for i, page in enumerate(pages)
    )
    padding = bytes(regions[0].layout.row_bytes - len(columns))
    assert regions[0].mmap_path.read_bytes() == (columns + padding) * num_rows + guard


def test_neighbours_become_one_piece() -> None:
    device, rows = torch.zeros((64, 16), dtype=torch.int8), torch.zeros((16, 64), dtype=torch.int8)
    whole, padded = CanonicalKVCacheRef(0, 16), CanonicalKVCacheRef(0, 15)
    for refs, blocks, sizes in [
        (whole, range(8, 16), [64, 64]),
        (whole, [8, 9, 10, 20, 21, 22, 23, 24], [48, 16, 64]),
        (whole, range(15, 7, -1), [16] * 8),
        (padded, range(8, 16), [15] * 8),
    ]:
        planner = TransferPlanner([device], [rows], [[refs]], 4)
        pieces = planner.plan(GPULoadStoreSpec(blocks, [8], [0]), CPULoadStoreSpec([3, 4]))
        assert pieces.sizes.tolist() == sizes
