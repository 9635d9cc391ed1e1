"""Reads and writes of batches of slots: neighbours in one call, each row behind its header, each read verified."""

from __future__ import annotations

import enum
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import xxhash

from tiers.disk.header import PAGE_BYTES, SlotHeader, encode_header
from tiers.disk.slab import SlabFiles
from tiers.disk.slot_buffers import BufferPool, SlotBuffers, copy_row, is_page_aligned
from tiers.disk.slots import IndexEntry

__all__ = ["HasSlabs", "Outcome", "Run", "SlotIO", "Transfer", "slot_bytes_for"]

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


class Transfer(NamedTuple):
    """One row on its way from or to the slot of ``entry``; slots are numbered over all roots."""

    entry: IndexEntry
    row: memoryview


Run = Sequence[Transfer]
"""Transfers whose slots are neighbours in one slab, in ascending order."""


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

    def runs(self, transfers: Iterable[Transfer]) -> list[Run]:
        """Cut transfers of distinct slots into runs of a size that keeps several threads busy."""
        num_roots = len(self._roots)
        runs: list[list[Transfer]] = []
        expected_slot = -1
        for transfer in sorted(transfers, key=self._place):
            slot = transfer.entry.slot
            begins_slab = slot // num_roots % self._roots[slot % num_roots].slabs.slots_per_slab == 0
            if slot == expected_slot and not begins_slab and len(runs[-1]) < self._max_slots:
                runs[-1].append(transfer)
            else:
                runs.append([transfer])
            expected_slot = slot + num_roots
        return list(runs)

    def _place(self, transfer: Transfer) -> tuple[int, int]:
        slot, root = divmod(transfer.entry.slot, len(self._roots))
        return root, slot

    def write(self, run: Run) -> list[Outcome]:
        """Write rows with their headers; where a joined write fails, each slot is tried by itself."""
        return self._each_alone_on_error(self._write, run)

    def read(self, run: Run) -> list[Outcome]:
        """Fill rows and verify them; where a joined read fails, each slot is tried by itself.

        Nothing but the rows is written to. A row whose outcome is not `Outcome.DONE` may hold anything.
        """
        return self._each_alone_on_error(self._read, run)

    def _each_alone_on_error(self, move: Callable[[Run, SlotBuffers], list[Outcome]], run: Run) -> list[Outcome]:
        bounce = self._must_bounce(run)
        buffers = self._buffers.take(bounce=bounce)
        try:
            return move(run, buffers)
        except OSError as error:
            if len(run) > 1:
                return [self._each_alone_on_error(move, [transfer])[0] for transfer in run]
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return [Outcome.NO_SPACE]
            return [Outcome.CORRUPT if isinstance(error, FileNotFoundError) else Outcome.FAILED]
        finally:
            self._buffers.give_back(buffers, bounce=bounce)

    def _write(self, run: Run, buffers: SlotBuffers) -> list[Outcome]:
        root, first_slot = self._place(run[0])
        rows = [transfer.row for transfer in run]
        for header, transfer in zip(buffers.headers, run, strict=False):
            header[:] = self._header(transfer, transfer.row)
        places = buffers.rows(rows)
        if places is not rows:
            for place, row in zip(places, rows, strict=True):
                copy_row(place, row)
        buffers.clear_padding(len(run))
        self._roots[root].slabs.write(first_slot, buffers.vector(rows))
        return [Outcome.DONE] * len(run)

    def _read(self, run: Run, buffers: SlotBuffers) -> list[Outcome]:
        root, first_slot = self._place(run[0])
        rows = [transfer.row for transfer in run]
        for header in buffers.headers[: len(run)]:
            # What lies behind the end of the file stays as it is, and must not pass for what was read.
            header[:8] = bytes(8)
        self._roots[root].slabs.read(first_slot, buffers.vector(rows))
        places = buffers.rows(rows)
        outcomes = []
        for header, place, transfer in zip(buffers.headers, places, run, strict=False):
            intact = bytes(header) == self._header(transfer, place)
            outcomes.append(Outcome.DONE if intact else Outcome.CORRUPT)
            if intact and place is not transfer.row:
                copy_row(transfer.row, place)
        return outcomes

    def _header(self, transfer: Transfer, row: memoryview) -> bytes:
        key, _, generation = transfer.entry
        checksum = xxhash.xxh3_64_intdigest(row)
        return encode_header(SlotHeader(self._fingerprint, key, generation, self._row_bytes, checksum))

    def _must_bounce(self, run: Run) -> bool:
        """Say whether direct I/O is on and cannot use these rows as its buffers."""
        if not self._roots[self._place(run[0])[0]].slabs.direct:
            return False
        return self._row_bytes % PAGE_BYTES != 0 or not all(is_page_aligned(transfer.row) for transfer in run)
