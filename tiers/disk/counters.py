"""What a disk tier counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DiskCounters"]


@dataclass(slots=True)
class DiskCounters:
    """Numbers since `open`; they only grow. Changed on the event loop thread alone.

    Attributes:
        stored, loaded: chunks written, and read with success.
        written_bytes: bytes written for them, with headers and padding: what counts against ``write_budget``.
        declined: chunks not stored because no slot was to be had, or their key is too long.
        not_admitted: chunks not stored because ``admission`` wanted to see them once more.
        over_budget: chunks not stored because ``write_budget`` was used up.
        evicted: chunks that made room for others.
        expired: chunks dropped because they were older than ``ttl``.
        write_errors, read_errors: chunks that met an I/O error; one with a read error is kept, unless its slot is
            found to be bad.
        bad_slots: slots not used any more because reading them kept failing while their root was well.
        corrupt: chunks dropped because what was read was not what had been stored.
        damaged_headers: header pages that were damaged or could not be read, when all were read for want of an index.
        journal_errors: failed writes of the index; the chunks concerned may be missing after a restart.
        roots_lost, roots_back: times a root was taken out of use, and put into use again.
        roots_read_only: times a root was found to take no writes any more.
        lost: chunks that went away with a root; many come back with it.
    """

    stored: int = 0
    loaded: int = 0
    written_bytes: int = 0
    declined: int = 0
    not_admitted: int = 0
    over_budget: int = 0
    evicted: int = 0
    expired: int = 0
    write_errors: int = 0
    read_errors: int = 0
    bad_slots: int = 0
    corrupt: int = 0
    damaged_headers: int = 0
    journal_errors: int = 0
    roots_lost: int = 0
    roots_back: int = 0
    roots_read_only: int = 0
    lost: int = 0
