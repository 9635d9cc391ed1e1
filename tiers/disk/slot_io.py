"""Reads and writes of batches of slots: neighbours in one call, each row behind its header, each read verified."""

from __future__ import annotations

import enum
import errno
import mmap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import xxhash

from tiers.disk.header import PAGE_BYTES, SlotHeader, fill_header, parse_header
from tiers.disk.slab import SlabFiles
from tiers.disk.slots import IndexEntry

__all__ = ["Outcome", "Run", "SlotIO", "Transfer", "slot_bytes_for"]

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


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row on its way from or to the slot of ``entry``; slots are numbered over all roots."""

    entry: IndexEntry
    row: memoryview


Run = Sequence[Transfer]
"""Transfers whose slots are neighbours in one slab, in ascending order."""


class SlotIO:
    """The slots of all roots, dealt out in turn: slot ``s`` is slot ``s // len(roots)`` of root ``s % len(roots)``.

    `read` and `write` block, and may run on several threads at once.
    """

    def __init__(self, roots: Sequence[SlabFiles], fingerprint: bytes, row_bytes: int) -> None:
        self._roots = roots
        self._fingerprint = fingerprint
        self._row_bytes = row_bytes
        self._slot_bytes = slot_bytes_for(row_bytes)

    def runs(self, transfers: Iterable[Transfer]) -> list[Run]:
        """Cut transfers of distinct slots into runs of a size that keeps several threads busy."""
        ordered = sorted(transfers, key=self._place)
        runs: list[list[Transfer]] = [ordered[:1]] if ordered else []
        for before, after in pairwise(ordered):
            if self._joins(before, after) and (len(runs[-1]) + 1) * self._slot_bytes <= _MAX_RUN_BYTES:
                runs[-1].append(after)
            else:
                runs.append([after])
        return list(runs)

    def _place(self, transfer: Transfer) -> tuple[int, int]:
        slot, root = divmod(transfer.entry.slot, len(self._roots))
        return root, slot

    def _joins(self, before: Transfer, after: Transfer) -> bool:
        (root, slot), (next_root, next_slot) = self._place(before), self._place(after)
        return root == next_root and next_slot == slot + 1 and next_slot % self._roots[root].slots_per_slab != 0

    def write(self, run: Run) -> list[Outcome]:
        """Write rows with their headers; where a joined write fails, each slot is tried by itself."""
        return self._each_alone_on_error(self._write, run)

    def read(self, run: Run) -> list[Outcome]:
        """Fill rows and verify them; where a joined read fails, each slot is tried by itself.

        Nothing but the rows is written to. A row whose outcome is not `Outcome.DONE` may hold anything.
        """
        return self._each_alone_on_error(self._read, run)

    def _each_alone_on_error(self, function: Callable[[Run], list[Outcome]], run: Run) -> list[Outcome]:
        try:
            return function(run)
        except OSError as error:
            if len(run) > 1:
                return [self._each_alone_on_error(function, [transfer])[0] for transfer in run]
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return [Outcome.NO_SPACE]
            return [Outcome.CORRUPT if isinstance(error, FileNotFoundError) else Outcome.FAILED]

    def _write(self, run: Run) -> list[Outcome]:
        root, first_slot = self._place(run[0])
        slots = _SlotBuffers(run, self._row_bytes, bounce=self._must_bounce(run))
        for header, row, transfer in zip(slots.headers, slots.rows, run, strict=True):
            if slots.bounce:
                _copy(row, transfer.row)
            fill_header(header, self._header(transfer, transfer.row))
        self._roots[root].write(first_slot, slots.vector())
        return [Outcome.DONE] * len(run)

    def _read(self, run: Run) -> list[Outcome]:
        root, first_slot = self._place(run[0])
        slots = _SlotBuffers(run, self._row_bytes, bounce=self._must_bounce(run))
        self._roots[root].read(first_slot, slots.vector())
        outcomes = []
        for header, row, transfer in zip(slots.headers, slots.rows, run, strict=True):
            intact = parse_header(header) == self._header(transfer, row)
            outcomes.append(Outcome.DONE if intact else Outcome.CORRUPT)
            if intact and slots.bounce:
                _copy(transfer.row, row)
        return outcomes

    def _header(self, transfer: Transfer, row: memoryview) -> SlotHeader:
        key, _, generation = transfer.entry
        return SlotHeader(self._fingerprint, key, generation, self._row_bytes, xxhash.xxh3_64_intdigest(row))

    def _must_bounce(self, run: Run) -> bool:
        """Say whether direct I/O is on and cannot use these rows as its buffers."""
        if not self._roots[self._place(run[0])[0]].direct:
            return False
        return self._row_bytes % PAGE_BYTES != 0 or any(_address(transfer.row) % PAGE_BYTES for transfer in run)


class _SlotBuffers:
    """Memory for the slots of one run: fresh header pages around the rows themselves, or (bounce) around aligned
    stand-ins for them."""

    def __init__(self, run: Run, row_bytes: int, *, bounce: bool) -> None:
        self.bounce = bounce
        padded_bytes = slot_bytes_for(row_bytes) - PAGE_BYTES
        stride = PAGE_BYTES + (padded_bytes if bounce else 0)
        # mmap gives zeroed memory at a page boundary, as direct I/O needs it.
        memory = memoryview(mmap.mmap(-1, stride * len(run) + PAGE_BYTES))
        starts = range(0, stride * len(run), stride)
        self.headers = [memory[start : start + PAGE_BYTES] for start in starts]
        self.rows = [memory[start + PAGE_BYTES :][:row_bytes] for start in starts] if bounce else [t.row for t in run]
        self._whole = memory[: stride * len(run)]
        self._padding = memory[stride * len(run) :][: padded_bytes - row_bytes]

    def vector(self) -> list[memoryview]:
        """Return the buffers of one vectored call, in the order of the bytes on disk."""
        if self.bounce:
            return [self._whole]
        return [part for pair in zip(self.headers, self.rows, strict=True) for part in (*pair, self._padding) if part]


def _address(row: memoryview) -> int:
    return int(np.frombuffer(row, np.uint8).ctypes.data) if row else 0


def _copy(target: memoryview, source: memoryview) -> None:
    # numpy lets other threads run meanwhile; a memoryview slice assignment does not.
    if source:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
