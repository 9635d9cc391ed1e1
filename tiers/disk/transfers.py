"""Rows on their way from and to slots, and what is done about those that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from tiers.disk.bad_slots import BadSlots
from tiers.disk.counters import DiskCounters
from tiers.disk.io_queue import IoQueue
from tiers.disk.roots import Roots
from tiers.disk.slot_io import Outcome, Run, SlotIO, Transfer
from tiers.disk.slots import IndexEntry

__all__ = ["Transfers"]

Outcomes = dict[IndexEntry, Outcome]

_Enqueue = Callable[[Sequence[Callable[[], list[Outcome]]]], Awaitable[list[list[Outcome]]]]


class Transfers:
    """Moves rows on the threads of an `IoQueue`; counts failures, and makes their roots and slots suspects.

    Event loop thread only.
    """

    def __init__(
        self,
        io: SlotIO,
        queue: IoQueue,
        roots: Roots,
        *,
        bad_slots: BadSlots,
        counters: DiskCounters,
        full_until: Callable[[], float],
    ) -> None:
        """Prepare. ``full_until`` returns until when a disk found full now shall not be asked for space again."""
        self._io = io
        self._queue = queue
        self._roots = roots
        self._bad_slots = bad_slots
        self._counters = counters
        self._full_until = full_until

    async def read(self, transfers: Iterable[Transfer]) -> Outcomes:
        """Fill rows; return how each ended, once no thread touches any row any more."""
        runs = self._io.runs(transfers)
        outcomes = await self._perform(runs, self._queue.read, self._io.read)
        for entry, outcome in outcomes.items():
            if outcome is Outcome.DONE:
                self._bad_slots.worked(entry.slot)
                self._roots.of(entry.slot).num_failed_reads = 0
            elif outcome is not Outcome.CORRUPT:
                self._counters.read_errors += 1
                self._bad_slots.not_read(entry)
                self._roots.of(entry.slot).num_failed_reads += 1
                self._failed("read failed", "could not be read", entry.slot)
        return outcomes

    async def write(self, transfers: Iterable[Transfer]) -> Outcomes:
        """Write rows; return how each ended, once no thread touches any row any more."""
        runs = self._io.runs(transfers)
        outcomes = await self._perform(runs, self._queue.write, self._io.write)
        for entry, outcome in outcomes.items():
            if outcome is Outcome.DONE:
                self._bad_slots.worked(entry.slot)
                continue
            self._counters.write_errors += 1
            if outcome is Outcome.NO_SPACE:
                root = self._roots.of(entry.slot)
                root.full_until = self._full_until()
                self._roots.complaints.say("disk full", f"{root.path} has no space for more chunks")
            else:
                self._bad_slots.not_written(entry.slot)
                self._failed("write failed", "could not be written", entry.slot)
        return outcomes

    def _failed(self, kind: str, what: str, slot: int) -> None:
        root = self._roots.of(slot)
        self._roots.complaints.say(kind, f"{root.path}: slot {self._roots.local(slot)} {what}")
        self._roots.suspect(root)

    async def _perform(self, runs: list[Run], enqueue: _Enqueue, move: Callable[[Run], list[Outcome]]) -> Outcomes:
        roots = [self._roots.of(run[0].entry.slot) for run in runs]
        for root in roots:
            root.num_in_flight += 1
        try:
            results = await enqueue([partial(move, run) for run in runs])
        finally:
            for root in roots:
                root.num_in_flight -= 1
        return {
            transfer.entry: outcome
            for run, outcomes in zip(runs, results, strict=True)
            for transfer, outcome in zip(run, outcomes, strict=True)
        }
