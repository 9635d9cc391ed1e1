"""The header page of a region file: what a joiner checks before it maps anything."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from tiering.errors import RegionError
from tiering.region.layout import HEADER_BYTES, RegionLayout

__all__ = ["RegionHeader", "is_region", "read_header", "write_header"]

_MAGIC = b"TIERSHM\0"
_VERSION = 2
_FIELDS = struct.Struct("<8sI4xqqqq")


@dataclass(frozen=True, slots=True)
class RegionHeader:
    """What the creator of a region says about it.

    Attributes:
        layout: its shape.
        creator_pid: the creator's process id, for messages only.
    """

    layout: RegionLayout
    creator_pid: int


def write_header(fd: int, header: RegionHeader) -> None:
    """Write ``header`` behind the rows."""
    layout = header.layout
    fields = (header.creator_pid, layout.num_rows, layout.num_workers, layout.worker_page_bytes)
    os.pwrite(fd, _FIELDS.pack(_MAGIC, _VERSION, *fields), layout.total_bytes)


def is_region(fd: int) -> bool:
    """Say whether the open file is a region of any version, or an empty stub."""
    raw = _read_raw(fd, os.fstat(fd).st_size)
    return not raw or raw.startswith(_MAGIC)


def read_header(fd: int, path: Path) -> RegionHeader | None:
    """Return the header of the open region file, or None while the file is empty.

    Raises:
        RegionError: the file is not a region, was written by another version, or is cut off.
    """
    size = os.fstat(fd).st_size
    raw = _read_raw(fd, size)
    if not raw:
        return None
    if len(raw) < _FIELDS.size or not raw.startswith(_MAGIC):
        raise RegionError(f"{path} ({size} bytes) is not a region file; remove it or choose another directory")
    _, version, creator_pid, *shape = _FIELDS.unpack(raw)
    if version != _VERSION:
        raise RegionError(f"{path} has region format {version}, this process knows {_VERSION}; stop its engine first")
    layout = RegionLayout(*shape)
    if layout.file_bytes != size:
        raise RegionError(f"{path} has {size} bytes, but its own header says {layout.file_bytes}; remove it")
    return RegionHeader(layout, creator_pid)


def _read_raw(fd: int, size: int) -> bytes:
    # Empty also where the file was emptied since its size was taken.
    return os.pread(fd, _FIELDS.size, max(0, size - HEADER_BYTES))
