"""Rows on their way from and to slots, and what is done about those that fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from tiers.disk.bad_slots import BadSlots
from tiers.disk.counters import DiskCounters
from tiers.disk.io_queue import IoQueue
from tiers.disk.roots import Roots
from tiers.disk.slot_io import Failures, Outcome, Run, SlotIO
from tiers.disk.slots import IndexEntry

__all__ = ["Transfers"]

_Enqueue = Callable[[Sequence[Callable[[], Failures]]], Awaitable[list[Failures]]]


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

    async def read(self, entries: Sequence[IndexEntry], rows: Sequence[memoryview]) -> Failures:
        """Fill rows; return which were not filled, once no thread touches any row any more."""
        failures: Failures = {}
        for run, failed in await self._perform(self._io.runs(entries, rows), self._queue.read, self._io.read):
            failures |= failed
            root = self._roots[run.root]
            unread = [entry for entry, outcome in failed.items() if outcome is not Outcome.CORRUPT]
            root.num_failed_reads = root.num_failed_reads + len(unread) if len(failed) == len(run.entries) else 0
            for entry in unread:
                self._counters.read_errors += 1
                self._bad_slots.not_read(entry)
                self._failed("read failed", "could not be read", entry.slot)
        return failures

    async def write(self, entries: Sequence[IndexEntry], rows: Sequence[memoryview]) -> Failures:
        """Write rows; return which were not written, once no thread touches any row any more."""
        failures: Failures = {}
        for run, failed in await self._perform(self._io.runs(entries, rows), self._queue.write, self._io.write):
            failures |= failed
            root = self._roots[run.root]
            self._counters.write_errors += len(failed)
            for entry, outcome in failed.items():
                if outcome is Outcome.NO_SPACE:
                    root.full_until = self._full_until()
                    self._roots.complaints.say("disk full", f"{root.path} has no space for more chunks")
                else:
                    self._bad_slots.not_written(entry.slot)
                    self._failed("write failed", "could not be written", entry.slot)
        return failures

    def _failed(self, kind: str, what: str, slot: int) -> None:
        root = self._roots.of(slot)
        self._roots.complaints.say(kind, f"{root.path}: slot {self._roots.local(slot)} {what}")
        self._roots.suspect(root)

    async def _perform(
        self, runs: list[Run], enqueue: _Enqueue, move: Callable[[Run], Failures]
    ) -> list[tuple[Run, Failures]]:
        roots = [self._roots[run.root] for run in runs]
        for root in roots:
            root.num_in_flight += 1
        try:
            results = list(zip(runs, await enqueue([partial(move, run) for run in runs]), strict=True))
        finally:
            for root in roots:
                root.num_in_flight -= 1
        for run, failed in results:
            self._bad_slots.worked(entry for entry in run.entries if entry not in failed)
        return results
