"""Reads and writes of batches of slots: neighbours in one call, each row behind its header, each read verified."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import xxhash

from tiers.disk.header import PAGE_BYTES, encode_header
from tiers.disk.slab import SlabFiles
from tiers.disk.slot_buffers import BufferPool, SlotBuffers, copy_row, is_page_aligned
from tiers.disk.slots import IndexEntry

__all__ = ["Failures", "HasSlabs", "Outcome", "Run", "SlotIO", "slot_bytes_for"]

_MAX_RUN_BYTES = 4 * 2**20


def slot_bytes_for(row_bytes: int) -> int:
    """Return the size of a slot: a header page and the row, padded to whole pages."""
    return PAGE_BYTES + -(-row_bytes // PAGE_BYTES) * PAGE_BYTES


class Outcome(enum.Enum):
    """How the transfer of one slot ended."""

    DONE = enum.auto()
    FAILED = enum.auto()
    """An I/O error that may pass."""
    NO_SPACE = enum.auto()
    """The disk had no space for the slot."""
    CORRUPT = enum.auto()
    """What the slot holds is not what the index says, or the slab is gone."""


Failures = dict[IndexEntry, Outcome]
"""How transfers ended that are not `Outcome.DONE`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Rows on their way from or to neighbouring slots of one slab.

    Attributes:
        root: number of the root.
        first_slot: number of the first slot, within the root.
        entries: what is, or is to be, in the slots, in ascending order.
        rows: as many rows in the same order.
    """

    root: int
    first_slot: int
    entries: list[IndexEntry]
    rows: list[memoryview]


class HasSlabs(Protocol):
    """A root, as far as it matters here. Its slabs may be exchanged while no transfer of it is under way."""

    slabs: SlabFiles


class SlotIO:
    """The slots of all roots, dealt out in turn: slot ``s`` is slot ``s // len(roots)`` of root ``s % len(roots)``.

    `read` and `write` block, and may run on several threads at once.
    """

    def __init__(self, roots: Sequence[HasSlabs], fingerprint: bytes, row_bytes: int) -> None:
        self._roots = roots
        self._fingerprint = fingerprint
        self._row_bytes = row_bytes
        slot_bytes = slot_bytes_for(row_bytes)
        # Headers do not count, so that rows of a power of two fill a run.
        self._max_slots = max(1, _MAX_RUN_BYTES // max(PAGE_BYTES, slot_bytes - PAGE_BYTES))
        self._buffers = BufferPool(self._max_slots, row_bytes, slot_bytes - PAGE_BYTES - row_bytes)

    def runs(self, entries: Sequence[IndexEntry], rows: Sequence[memoryview]) -> list[Run]:
        """Cut transfers of distinct slots into runs of a size that keeps several threads busy."""
        num_roots = len(self._roots)
        runs: list[Run] = []
        for idx, root in enumerate(self._roots):
            mine = {entry.slot: place for place, entry in enumerate(entries) if entry.slot % num_roots == idx}
            expected_slot = -1
            for slot_of_all in sorted(mine):
                entry, row = entries[mine[slot_of_all]], rows[mine[slot_of_all]]
                slot = slot_of_all // num_roots
                begins_slab = slot % root.slabs.slots_per_slab == 0
                if slot != expected_slot or begins_slab or len(runs[-1].rows) == self._max_slots:
                    runs.append(Run(idx, slot, [], []))
                runs[-1].entries.append(entry)
                runs[-1].rows.append(row)
                expected_slot = slot + 1
        return runs

    def write(self, run: Run) -> Failures:
        """Write rows with their headers; where a joined write fails, each slot is tried by itself."""
        return self._each_alone_on_error(self._write, run)

    def read(self, run: Run) -> Failures:
        """Fill rows and verify them; where a joined read fails, each slot is tried by itself.

        Nothing but the rows is written to. The row of a failure may hold anything.
        """
        return self._each_alone_on_error(self._read, run)

    def _each_alone_on_error(self, move: Callable[[Run, SlotBuffers], Failures], run: Run) -> Failures:
        bounce = self._must_bounce(run)
        buffers = self._buffers.take(bounce=bounce)
        try:
            return move(run, buffers)
        except OSError as error:
            if len(run.rows) > 1:
                alone = [
                    Run(run.root, run.first_slot + place, [entry], [row])
                    for place, (entry, row) in enumerate(zip(run.entries, run.rows, strict=True))
                ]
                return {
                    entry: outcome for one in alone for entry, outcome in self._each_alone_on_error(move, one).items()
                }
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return {run.entries[0]: Outcome.NO_SPACE}
            return {run.entries[0]: Outcome.CORRUPT if isinstance(error, FileNotFoundError) else Outcome.FAILED}
        finally:
            self._buffers.give_back(buffers, bounce=bounce)

    def _write(self, run: Run, buffers: SlotBuffers) -> Failures:
        for header, entry, row in zip(buffers.headers, run.entries, run.rows, strict=False):
            header[:] = self._header(entry, row)
        places = buffers.rows(run.rows)
        if places is not run.rows:
            for place, row in zip(places, run.rows, strict=True):
                copy_row(place, row)
        buffers.clear_padding(len(run.rows))
        self._roots[run.root].slabs.write(run.first_slot, buffers.vector(run.rows))
        return {}

    def _read(self, run: Run, buffers: SlotBuffers) -> Failures:
        for header in buffers.headers[: len(run.rows)]:
            # What lies behind the end of the file stays as it is, and must not pass for what was read.
            header[:8] = bytes(8)
        self._roots[run.root].slabs.read(run.first_slot, buffers.vector(run.rows))
        failures = {}
        places = buffers.rows(run.rows)
        for header, place, entry, row in zip(buffers.headers, places, run.entries, run.rows, strict=False):
            if bytes(header) != self._header(entry, place):
                failures[entry] = Outcome.CORRUPT
            elif place is not row:
                copy_row(row, place)
        return failures

    def _header(self, entry: IndexEntry, row: memoryview) -> bytes:
        checksum = xxhash.xxh3_64_intdigest(row)
        return encode_header(self._fingerprint, entry.key, entry.generation, self._row_bytes, checksum)

    def _must_bounce(self, run: Run) -> bool:
        """Say whether direct I/O is on and cannot use these rows as its buffers."""
        if not self._roots[run.root].slabs.direct:
            return False
        return self._row_bytes % PAGE_BYTES != 0 or not all(map(is_page_aligned, run.rows))
