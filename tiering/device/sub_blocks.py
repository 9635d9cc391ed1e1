"""Addresses of the device blocks that lie inside larger blocks (seed, chapter 7.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["compute_sub_block_ptrs", "sub_block_positions"]

IntArray = npt.NDArray[np.int64]


def sub_block_positions(
    block_ids: IntArray, block_size_factor: int, num_sub_blocks: int, skip_count: int
) -> tuple[IntArray, IntArray]:
    """Return the block and the place in it of each of ``num_sub_blocks`` consecutive sub-blocks.

    Args:
        block_ids: int64 array of shape ``(num_blocks,)``, in logical order.
        block_size_factor: sub-blocks per block.
        num_sub_blocks: how many to return.
        skip_count: sub-blocks of the first block that are left out.

    Raises:
        ValueError: ``skip_count`` is a whole block or more, or the blocks hold fewer sub-blocks than asked for.
    """
    if not 0 <= skip_count < block_size_factor:
        raise ValueError(f"skip count {skip_count} is outside 0..{block_size_factor - 1}")
    if num_sub_blocks and skip_count + num_sub_blocks > len(block_ids) * block_size_factor:
        raise ValueError(
            f"{len(block_ids)} blocks of {block_size_factor} do not hold {num_sub_blocks} after skipping {skip_count}"
        )
    index, place = np.divmod(np.arange(skip_count, skip_count + num_sub_blocks, dtype=np.int64), block_size_factor)
    return block_ids[index], place


def compute_sub_block_ptrs(
    block_ids: IntArray,
    block_size_factor: int,
    output: IntArray,
    tensor: torch.Tensor,
    skip_count: int = 0,
) -> None:
    """Fill ``output`` with the addresses of as many consecutive sub-blocks, from ``skip_count`` on.

    Args:
        block_ids: rows of ``tensor``, int64 of shape ``(num_blocks,)``, in logical order.
        block_size_factor: sub-blocks per row; a row's bytes are divided evenly among them.
        output: int64 of shape ``(num_sub_blocks,)``.
        tensor: int8 of shape ``(num_rows, row_bytes)``, rows apart by any stride.
        skip_count: sub-blocks of the first row that are left out.

    Raises:
        ValueError: as `sub_block_positions`, or a row cannot be divided evenly; ``output`` is untouched.
    """
    if tensor.shape[1] % block_size_factor:
        raise ValueError(f"rows of {tensor.shape[1]} bytes cannot be divided into {block_size_factor} sub-blocks")
    rows, place = sub_block_positions(block_ids, block_size_factor, len(output), skip_count)
    output[:] = tensor.data_ptr() + rows * tensor.stride(0) + place * (tensor.shape[1] // block_size_factor)
