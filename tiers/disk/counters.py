"""What a disk tier counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DiskCounters"]


@dataclass(slots=True)
class DiskCounters:
    """Numbers since `open`; they only grow. Changed on the event loop thread alone.

    Attributes:
        stored, loaded: chunks written, and read with success.
        declined: chunks not stored because no slot was to be had, or their key is too long.
        evicted: chunks that made room for others.
        write_errors, read_errors: chunks that met an I/O error; a chunk with a read error is kept.
        corrupt: chunks dropped because what was read was not what had been stored.
        journal_errors: failed writes of the index; the chunks concerned may be missing after a restart.
    """

    stored: int = 0
    loaded: int = 0
    declined: int = 0
    evicted: int = 0
    write_errors: int = 0
    read_errors: int = 0
    corrupt: int = 0
    journal_errors: int = 0
