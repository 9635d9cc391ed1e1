"""The header page in front of each stored row, by which a slab explains itself without an index."""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from tiering.keys import OffloadKey

__all__ = ["MAX_KEY_BYTES", "PAGE_BYTES", "SLOT_FORMAT_VERSION", "SlotHeader", "encode_header", "parse_header"]

PAGE_BYTES = 4096
"""Size of a header page, and the alignment of everything in a slab."""

SLOT_FORMAT_VERSION = 1
_MAGIC = b"KVTSLOT\0"
_FIXED = struct.Struct("<8sII16sQQQ")
_PAGE_CHECKSUM = struct.Struct("<Q")
_PAGE_CHECKSUM_AT = PAGE_BYTES - _PAGE_CHECKSUM.size

MAX_KEY_BYTES = _PAGE_CHECKSUM_AT - _FIXED.size
"""Longest key that fits into a header page."""


class SlotHeader(NamedTuple):
    """What a header page says about the row behind it.

    Attributes:
        fingerprint: 16 bytes naming the namespace.
        key: the chunk's key.
        generation: number of the write that put it here; a later write has a higher one.
        row_bytes: length of the row, without its padding.
        checksum: xxh3_64 of the row.
    """

    fingerprint: bytes
    key: OffloadKey
    generation: int
    row_bytes: int
    checksum: int


def encode_header(fingerprint: bytes, key: OffloadKey, generation: int, row_bytes: int, checksum: int) -> bytes:
    """Return the header page that says these fields of a `SlotHeader`, `PAGE_BYTES` long."""
    fixed = _FIXED.pack(_MAGIC, SLOT_FORMAT_VERSION, len(key), fingerprint, generation, row_bytes, checksum)
    body = (fixed + key).ljust(_PAGE_CHECKSUM_AT, b"\0")
    return body + _PAGE_CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def parse_header(page: memoryview) -> SlotHeader | None:
    """Return what ``page`` says, or None if it is no intact header page of this format version."""
    magic, version, key_bytes, fingerprint, generation, row_bytes, checksum = _FIXED.unpack_from(page)
    if magic != _MAGIC or version != SLOT_FORMAT_VERSION or key_bytes > MAX_KEY_BYTES:
        return None
    if _PAGE_CHECKSUM.unpack_from(page, _PAGE_CHECKSUM_AT) != (xxhash.xxh3_64_intdigest(page[:_PAGE_CHECKSUM_AT]),):
        return None
    key = OffloadKey(bytes(page[_FIXED.size : _FIXED.size + key_bytes]))
    return SlotHeader(fingerprint, key, generation, row_bytes, checksum)
