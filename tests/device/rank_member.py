"""One rank of a hybrid model, as a process of its own; run as a script by the tests.

It stores chunks of three groups into the shared region, reports, waits until all have stored, loads them into other
blocks and compares. With replicas, ranks that share a column hold the same bytes.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import torch

from tiering.device import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CpuGpuOffloadingHandlers,
    OffloadingHandler,
)
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.testing.patterns import key_pattern
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec, TransferSpec

FACTOR = 2
NUM_BLOCKS = 24
NUM_ROWS = 16

# Attention with two layers, one of them padded; a window of small pages; a state with one large page.
PAGES = [4096, 1000, 512, 9000]
GROUPS = [[(0, 4096), (1, 900)], [(1, 1000), (2, 512)], [(3, 9000)]]

# Blocks 3.. of the attention group, the end of the window, the last state only.
SIZES, INDICES = [5, 3, 1], [3, 6, 7]
STORED, LOADED = [0, 1, 2, 3, 4, 10, 12, 14, 7], [23, 22, 21, 20, 19, 18, 17, 16, 15]
ROWS = [14, 3, 9, 0, 5, 12]

STALE = 0xEE


def block_bytes(column: int, group: int, block: int, tensor: int, used: int) -> np.ndarray:
    return key_pattern(bytes([column, group, block, tensor]), used).view(np.int8)


def open_region(directory: str, rank: int | None, num_columns: int, num_replicas: int) -> SharedOffloadRegion:
    layout = RegionLayout(NUM_ROWS, num_columns, sum(PAGES) * FACTOR)
    return SharedOffloadRegion(
        "ranks", layout.total_bytes, NUM_ROWS, rank, num_columns, layout.worker_page_bytes,
        directory=directory, num_replicas=num_replicas,
    )  # fmt: skip


def main() -> None:
    directory, rank, num_columns, num_replicas = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    region = open_region(directory, rank, num_columns, num_replicas)
    tensors = [torch.full((NUM_BLOCKS, page), STALE - 256, dtype=torch.int8) for page in PAGES]
    refs = [[CanonicalKVCacheRef(tensor, used) for tensor, used in group] for group in GROUPS]
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors], refs)
    handlers = CpuGpuOffloadingHandlers(caches, FACTOR, NUM_ROWS, region)
    rows, column = CPULoadStoreSpec(ROWS), rank // num_replicas

    for group, at, block in blocks_of(STORED):
        for tensor, used in GROUPS[group]:
            tensors[tensor][block, :used] = torch.from_numpy(block_bytes(column, group, at, tensor, used))
    moved = transfer(handlers.gpu_to_cpu_handler, (GPULoadStoreSpec(STORED, SIZES, INDICES), rows))
    print(moved, flush=True)
    sys.stdin.readline()

    for tensor in tensors:
        tensor.fill_(STALE - 256)
    transfer(handlers.cpu_to_gpu_handler, (rows, GPULoadStoreSpec(LOADED, SIZES, INDICES)))
    expected = [np.full(tensor.shape, STALE - 256, dtype=np.int8) for tensor in tensors]
    for group, at, block in blocks_of(LOADED):
        for tensor, used in GROUPS[group]:
            expected[tensor][block, :used] = block_bytes(column, group, at, tensor, used)
    wrong = sum(real.numpy().tobytes() != model.tobytes() for real, model in zip(tensors, expected, strict=True))
    handlers.shutdown()
    region.cleanup()
    print(wrong, flush=True)


def blocks_of(blocks: list[int]) -> list[tuple[int, int, int]]:
    """Return (group, its n-th block, device block)."""
    groups = [(group, at) for group, size in enumerate(SIZES) for at in range(size)]
    return [(group, at, block) for (group, at), block in zip(groups, blocks, strict=True)]


def transfer(handler: OffloadingHandler, spec: TransferSpec) -> int:
    if not handler.transfer_async(1, spec):
        raise RuntimeError("the transfer was refused")
    handler.wait({1})
    (result,) = handler.get_finished()
    if not result.success:
        raise RuntimeError(f"the transfer failed: {result.error}")
    return result.transfer_size or 0


if __name__ == "__main__":
    main()
