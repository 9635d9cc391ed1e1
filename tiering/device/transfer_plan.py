"""The plan of one transfer: which bytes go where, for both directions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tiering.device.kv_caches import CanonicalKVCacheRef
from tiering.device.store_turns import StoreTurns
from tiering.device.sub_blocks import IntArray, sub_block_positions
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["CopyPieces", "TransferPlanner"]


@dataclass(frozen=True, slots=True)
class CopyPieces:
    """Bytes to copy, piece by piece, in no particular order. No piece reaches from one row into the next.

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
class _Places:
    """Where some of a group's tensors lie: int64 columns of shape ``(num_refs, 1)``, to be broadcast over blocks."""

    device_base: IntArray
    device_stride: IntArray
    row_base: IntArray
    row_stride: IntArray
    page_bytes: IntArray
    used_bytes: IntArray

    def pieces(self, blocks: IntArray, rows: IntArray, place: IntArray, num_blocks: IntArray | int) -> CopyPieces:
        """Return the pieces of ``num_blocks`` blocks each that begin at these blocks and places in rows."""
        device_ptrs = self.device_base + self.device_stride * blocks
        row_ptrs = self.row_base + self.row_stride * rows + self.page_bytes * place
        sizes = np.broadcast_to(self.used_bytes * num_blocks, device_ptrs.shape)
        return CopyPieces(device_ptrs.ravel(), row_ptrs.ravel(), sizes.ravel())


@dataclass(frozen=True, slots=True)
class _Group:
    """A group's tensors: those whose pages follow one another without gaps on both sides, and the others."""

    num_device_blocks: int
    num_rows: int
    dense: _Places
    sparse: _Places


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
        self._groups = [_group(device_tensors, row_tensors, refs, block_size_factor) for refs in group_data_refs]

    def plan(self, device: GPULoadStoreSpec, rows: CPULoadStoreSpec, turns: StoreTurns | None = None) -> CopyPieces:
        """Return what to copy; neighbours on both sides, within a row, are one piece.

        Args:
            device: the blocks.
            rows: the rows.
            turns: leaves out the rows that are another rank's to store.

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
        for group, size, skip, count in zip(self._groups, device.group_sizes, skips, num_rows, strict=True):
            group_blocks = device.block_ids[device_begin : device_begin + size]
            group_rows = rows.block_ids[row_begin : row_begin + count]
            positions = sub_block_positions(group_rows, self._factor, size, skip)
            parts += _group_pieces(group, group_blocks, *positions, turns)
            device_begin += size
            row_begin += count
        return _concatenate(parts)


def _group(
    device_tensors: Sequence[torch.Tensor],
    row_tensors: Sequence[torch.Tensor],
    refs: Sequence[CanonicalKVCacheRef],
    block_size_factor: int,
) -> _Group:
    def is_dense(ref: CanonicalKVCacheRef) -> bool:
        row_page = row_tensors[ref.tensor_idx].shape[1] // block_size_factor
        return ref.page_size_bytes == device_tensors[ref.tensor_idx].stride(0) == row_page

    def places(chosen: list[CanonicalKVCacheRef]) -> _Places:
        device = [device_tensors[ref.tensor_idx] for ref in chosen]
        rows = [row_tensors[ref.tensor_idx] for ref in chosen]
        return _Places(
            device_base=_column([tensor.data_ptr() for tensor in device]),
            device_stride=_column([tensor.stride(0) for tensor in device]),
            row_base=_column([tensor.data_ptr() for tensor in rows]),
            row_stride=_column([tensor.stride(0) for tensor in rows]),
            page_bytes=_column([tensor.shape[1] // block_size_factor for tensor in rows]),
            used_bytes=_column([ref.page_size_bytes for ref in chosen]),
        )

    return _Group(
        num_device_blocks=min((len(device_tensors[ref.tensor_idx]) for ref in refs), default=0),
        num_rows=min((len(row_tensors[ref.tensor_idx]) for ref in refs), default=0),
        dense=places([ref for ref in refs if is_dense(ref)]),
        sparse=places([ref for ref in refs if not is_dense(ref)]),
    )


def _column(values: list[int]) -> IntArray:
    return np.array(values, dtype=np.int64).reshape(-1, 1)


def _group_pieces(
    group: _Group, blocks: IntArray, rows: IntArray, place: IntArray, turns: StoreTurns | None
) -> list[CopyPieces]:
    if not len(blocks) or not len(group.dense.used_bytes) + len(group.sparse.used_bytes):
        return []
    _check_ids(blocks, group.num_device_blocks, "device block")
    _check_ids(rows, group.num_rows, "row")
    if turns is not None:
        mine = turns.are_mine(rows)
        blocks, rows, place = blocks[mine], rows[mine], place[mine]
    parts = []
    if len(group.sparse.used_bytes):
        parts.append(group.sparse.pieces(blocks, rows, place, 1))
    if len(group.dense.used_bytes):
        # A row is where pieces end, because neighbouring rows may be pinned apart from one another.
        continues = (blocks[1:] == blocks[:-1] + 1) & (place[1:] == place[:-1] + 1) & (rows[1:] == rows[:-1])
        firsts = np.flatnonzero(np.concatenate(([True], ~continues))) if len(blocks) else np.empty(0, dtype=np.int64)
        num_blocks = np.diff(firsts, append=len(blocks))
        parts.append(group.dense.pieces(blocks[firsts], rows[firsts], place[firsts], num_blocks))
    return parts


def _check_ids(ids: IntArray, count: int, what: str) -> None:
    wrong = ids[(ids < 0) | (ids >= count)]
    if len(wrong):
        raise ValueError(f"{what} {wrong[0]} does not exist; allowed are 0..{count - 1}")


def _concatenate(parts: list[CopyPieces]) -> CopyPieces:
    nothing = np.empty(0, dtype=np.int64)
    return CopyPieces(
        np.concatenate([nothing, *(part.device_ptrs for part in parts)]),
        np.concatenate([nothing, *(part.row_ptrs for part in parts)]),
        np.concatenate([nothing, *(part.sizes for part in parts)]),
    )
