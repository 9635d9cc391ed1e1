"""The plan of one transfer: which bytes go where, for both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tiering.device.kv_caches import CanonicalKVCacheRef
from tiering.device.sub_blocks import IntArray, sub_block_positions
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["CopyPieces", "TransferPlanner"]


@dataclass(frozen=True, slots=True)
class CopyPieces:
    """Bytes to copy, piece by piece, in no particular order.

    Attributes:
        device_ptrs: addresses in device tensors, int64 of shape ``(num_pieces,)``.
        row_ptrs: addresses in rows, likewise.
        sizes: bytes, likewise.
    """

    device_ptrs: IntArray
    row_ptrs: IntArray
    sizes: IntArray

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces."""
        return int(self.sizes.sum())


@dataclass(frozen=True, slots=True)
class _GroupPlaces:
    """Where a group's tensors lie: int64 columns of shape ``(num_refs, 1)``, to be broadcast over blocks."""

    num_device_blocks: int
    num_rows: int
    device_base: IntArray
    device_stride: IntArray
    row_base: IntArray
    row_stride: IntArray
    page_bytes: IntArray
    used_bytes: IntArray


class TransferPlanner:
    """Turns a pair of specs into addresses, for one worker's tensors. Safe to use from any thread.

    Each row holds, per tensor, ``block_size_factor`` device pages one after another. The blocks of a group begin in
    the first of its rows after ``block_index % block_size_factor`` pages; each group starts in a row of its own.
    """

    def __init__(
        self,
        device_tensors: Sequence[torch.Tensor],
        row_tensors: Sequence[torch.Tensor],
        group_data_refs: Sequence[Sequence[CanonicalKVCacheRef]],
        block_size_factor: int,
    ) -> None:
        """Note where the tensors lie; the caller keeps them alive.

        Args:
            device_tensors: int8, ``(num_device_blocks, page_bytes)`` each.
            row_tensors: int8, ``(num_rows, page_bytes * block_size_factor)`` each, in the same order.
            group_data_refs: per group, which tensors it uses.
            block_size_factor: device blocks per row.
        """
        self._factor = block_size_factor
        self._groups = [_places(device_tensors, row_tensors, refs, block_size_factor) for refs in group_data_refs]

    def plan(self, device: GPULoadStoreSpec, rows: CPULoadStoreSpec) -> CopyPieces:
        """Return what to copy, joined where neighbours on both sides make one piece.

        Raises:
            ValueError: the number of groups or rows does not fit, or a block or row does not exist.
        """
        if len(device.group_sizes) != len(self._groups):
            raise ValueError(f"{len(device.group_sizes)} group sizes given, the worker has {len(self._groups)} groups")
        skips = [index % self._factor for index in device.block_indices]
        num_rows = [
            -(-(size + skip) // self._factor) if size else 0
            for size, skip in zip(device.group_sizes, skips, strict=True)
        ]
        if sum(num_rows) != len(rows.block_ids):
            raise ValueError(
                f"{len(rows.block_ids)} rows given, but groups of {device.group_sizes} blocks from indices "
                f"{device.block_indices} take {sum(num_rows)} rows of {self._factor} blocks"
            )
        parts = []
        device_begin = row_begin = 0
        for places, size, skip, count in zip(self._groups, device.group_sizes, skips, num_rows, strict=True):
            group_blocks = device.block_ids[device_begin : device_begin + size]
            group_rows = rows.block_ids[row_begin : row_begin + count]
            positions = sub_block_positions(group_rows, self._factor, size, skip)
            parts.append(_group_pieces(places, group_blocks, *positions))
            device_begin += size
            row_begin += count
        return _join_neighbours(parts)


def _places(
    device_tensors: Sequence[torch.Tensor],
    row_tensors: Sequence[torch.Tensor],
    refs: Sequence[CanonicalKVCacheRef],
    block_size_factor: int,
) -> _GroupPlaces:
    device = [device_tensors[ref.tensor_idx] for ref in refs]
    rows = [row_tensors[ref.tensor_idx] for ref in refs]
    return _GroupPlaces(
        num_device_blocks=min((len(tensor) for tensor in device), default=0),
        num_rows=min((len(tensor) for tensor in rows), default=0),
        device_base=_column([tensor.data_ptr() for tensor in device]),
        device_stride=_column([tensor.stride(0) for tensor in device]),
        row_base=_column([tensor.data_ptr() for tensor in rows]),
        row_stride=_column([tensor.stride(0) for tensor in rows]),
        page_bytes=_column([tensor.shape[1] // block_size_factor for tensor in rows]),
        used_bytes=_column([ref.page_size_bytes for ref in refs]),
    )


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64).reshape(-1, 1)


def _group_pieces(places: _GroupPlaces, blocks: IntArray, rows: IntArray, place: IntArray) -> CopyPieces:
    if len(places.used_bytes):
        _check_ids(blocks, places.num_device_blocks, "device block")
        _check_ids(rows, places.num_rows, "row")
    device_ptrs = places.device_base + places.device_stride * blocks
    row_ptrs = places.row_base + places.row_stride * rows + places.page_bytes * place
    sizes = np.broadcast_to(places.used_bytes, device_ptrs.shape)
    return CopyPieces(device_ptrs.ravel(), row_ptrs.ravel(), sizes.ravel())


def _check_ids(ids: IntArray, count: int, what: str) -> None:
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        raise ValueError(f"{what} {wrong[0]} does not exist; allowed are 0..{count - 1}")


def _join_neighbours(parts: list[CopyPieces]) -> CopyPieces:
    if not parts:
        nothing = np.empty(0, dtype=np.int64)
        return CopyPieces(nothing, nothing, nothing)
    device_ptrs = np.concatenate([part.device_ptrs for part in parts])
    row_ptrs = np.concatenate([part.row_ptrs for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    if not len(sizes):
        return CopyPieces(device_ptrs, row_ptrs, sizes)
    continues = (device_ptrs[1:] == device_ptrs[:-1] + sizes[:-1]) & (row_ptrs[1:] == row_ptrs[:-1] + sizes[:-1])
    firsts = np.concatenate(([0], np.flatnonzero(~continues) + 1))
    return CopyPieces(device_ptrs[firsts], row_ptrs[firsts], np.add.reduceat(sizes, firsts))
