"""The header in front of each stored row, by which an object explains itself."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import xxhash

from tiering.keys import OffloadKey

__all__ = ["HEADER_BYTES", "MAX_KEY_BYTES", "OBJECT_FORMAT_VERSION", "ObjectHeader", "encode_header", "parse_header"]

HEADER_BYTES = 256
"""Size of the header; the row follows it."""

OBJECT_FORMAT_VERSION = 1
_MAGIC = b"KVTOBJ\0\0"
_FIXED = struct.Struct("<8sII16sQQ")
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_AT = HEADER_BYTES - _CHECKSUM.size

MAX_KEY_BYTES = 120
"""Longest key that an object may have: written in hex, it is still a file name everywhere."""


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What a header says about the row behind it.

    Attributes:
        fingerprint: 16 bytes naming the namespace.
        key: the chunk's key.
        row_bytes: length of the row.
        checksum: xxh3_64 of the row.
    """

    fingerprint: bytes
    key: OffloadKey
    row_bytes: int
    checksum: int


def encode_header(header: ObjectHeader) -> bytes:
    """Return the header, `HEADER_BYTES` long. The key has at most `MAX_KEY_BYTES`."""
    fixed = _FIXED.pack(
        _MAGIC, OBJECT_FORMAT_VERSION, len(header.key), header.fingerprint, header.row_bytes, header.checksum
    )
    body = (fixed + header.key).ljust(_CHECKSUM_AT, b"\0")
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def parse_header(data: bytes | bytearray) -> ObjectHeader | None:
    """Return what ``data``, `HEADER_BYTES` long, says, or None if it is no intact header of this format version."""
    magic, version, key_bytes, fingerprint, row_bytes, checksum = _FIXED.unpack_from(data)
    if magic != _MAGIC or version != OBJECT_FORMAT_VERSION or key_bytes > MAX_KEY_BYTES:
        return None
    if _CHECKSUM.unpack_from(data, _CHECKSUM_AT) != (xxhash.xxh3_64_intdigest(data[:_CHECKSUM_AT]),):
        return None
    key = OffloadKey(bytes(data[_FIXED.size : _FIXED.size + key_bytes]))
    return ObjectHeader(fingerprint, key, row_bytes, checksum)
