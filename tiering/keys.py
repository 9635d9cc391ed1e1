"""Offload keys: the names under which chunks are kept.

A key is plain bytes, chunk hash first and four bytes of KV-cache group index last, because a key per chunk must cost
no more than one small object that the garbage collector does not track (seed, chapter 1.1). Nothing outside this
module takes a key apart.
"""

from __future__ import annotations

from typing import NewType

__all__ = ["OffloadKey", "get_offload_block_hash", "get_offload_group_idx", "make_offload_key"]

OffloadKey = NewType("OffloadKey", bytes)

_GROUP_BYTES = 4
_MAX_GROUP_IDX = 2 ** (8 * _GROUP_BYTES) - 1


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """Name the chunk with ``block_hash`` (of any length) in KV-cache group ``group_idx``.

    Raises:
        ValueError: ``group_idx`` is outside 0..2**32-1.
    """
    if not 0 <= group_idx <= _MAX_GROUP_IDX:
        raise ValueError(f"group index {group_idx} is outside 0..{_MAX_GROUP_IDX}")
    return OffloadKey(block_hash + group_idx.to_bytes(_GROUP_BYTES, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """Return the chunk hash that ``key`` was made from."""
    return key[:-_GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """Return the KV-cache group index that ``key`` was made from."""
    return int.from_bytes(key[-_GROUP_BYTES:], "big")
