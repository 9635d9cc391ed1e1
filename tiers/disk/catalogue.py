"""The index of a disk tier in memory and on disk, changed together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tiering.keys import OffloadKey
from tiering.tier import TierContext
from tiers.disk.bad_slots import BadSlots
from tiers.disk.config import DiskConfig
from tiers.disk.counters import DiskCounters
from tiers.disk.expiry import Expiry
from tiers.disk.journal import Journal
from tiers.disk.root import Root
from tiers.disk.roots import Roots
from tiers.disk.slot_io import Failures, Outcome
from tiers.disk.slots import IndexEntry, SlotTable
from tiers.disk.system_calls import SystemCalls

__all__ = ["Catalogue"]


class Catalogue:
    """Puts chunks in and takes them out: table, journal, expiry, counters and the core's notice in one step.

    Event loop thread only; no I/O, for journals are written behind.
    """

    def __init__(
        self,
        config: DiskConfig,
        context: TierContext,
        system: SystemCalls,
        *,
        table: SlotTable,
        roots: Roots,
        bad_slots: BadSlots,
        counters: DiskCounters,
    ) -> None:
        self._context = context
        self._system = system
        self._table = table
        self._roots = roots
        self._bad_slots = bad_slots
        self._counters = counters
        self._expiry = Expiry(config.ttl, context.clock) if config.ttl else None
        # Of slots being written, what they held. The journal's record of what overwrites a chunk also ends that chunk,
        # so that it needs a record of its own only where the write fails.
        self._overwritten: dict[int, OffloadKey] = {}
        roots.on_well = self._give_up_bad_slots
        roots.on_back = self._resume_expiry

    def take_slots(self, count: int) -> list[int]:
        """Hand out up to ``count`` slots in ascending order, in exchange for other chunks if need be.

        All of them are to be written to, and given to `settle`.
        """
        slots, victims = self._table.take(count, self._roots.full(), self._roots.unusable())
        if victims:
            self._overwritten |= victims
            self._counters.evicted += len(victims)
            self._context.report_evicted(list(victims.values()))
        return slots

    def settle(self, entries: Sequence[IndexEntry], failures: Failures) -> list[IndexEntry]:
        """Put slots whose writes have ended where they belong; return the chunks that are here now.

        The last one of ``entries`` is the last to go.
        """
        for entry, outcome in failures.items():
            journal = self._roots.of(entry.slot).journal
            overwritten = self._overwritten.get(entry.slot)
            if overwritten is not None and overwritten not in self._table and journal is not None:
                journal.delete([overwritten])
            if outcome is Outcome.NO_SPACE:
                self._table.give_back_unbacked(entry.slot)
            elif self._bad_slots.is_bad(entry.slot):
                self._counters.bad_slots += 1
            else:
                self._table.give_back(entry.slot)
        for entry in entries:
            self._overwritten.pop(entry.slot, None)
        stored = self._table.insert([entry for entry in entries if entry not in failures] if failures else entries)
        self._counters.stored += len(stored)
        num_roots = len(self._roots)
        for journal, share in self._journals(stored):
            journal.put((key, slot // num_roots, generation) for key, slot, generation in share)
        if self._expiry is not None:
            for entry in stored:
                self._expiry.note(entry)
        return stored

    def drop(self, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
        """Drop chunks, unless their key was stored anew meanwhile; return those dropped."""
        dropped = [entry for entry in entries if self._table.holds(entry)]
        for entry in dropped:
            self._table.discard(entry.key)
        self._gone(dropped)
        return dropped

    def drop_corrupt(self, entries: Iterable[IndexEntry]) -> None:
        """Drop chunks that did not verify."""
        corrupt = self.drop(entries)
        self._counters.corrupt += len(corrupt)
        if corrupt:
            self._context.report_corrupt([entry.key for entry in corrupt])

    def expire(self) -> None:
        """Drop what is older than ``ttl``."""
        if self._expiry is not None:
            self._counters.expired += len(self.drop(self._expiry.take_expired()))

    def _gone(self, entries: list[IndexEntry]) -> None:
        for journal, share in self._journals(entries):
            journal.delete(entry.key for entry in share)
        if entries:
            self._context.report_evicted([entry.key for entry in entries])

    def _journals(self, entries: Sequence[IndexEntry]) -> Iterator[tuple[Journal, Sequence[IndexEntry]]]:
        """Yield the journals that these chunks concern, each with its own ones."""
        num_roots = len(self._roots)
        for root in self._roots:
            share = entries if num_roots == 1 else [entry for entry in entries if entry.slot % num_roots == root.idx]
            if share and root.journal is not None:
                yield root.journal, share

    def _give_up_bad_slots(self, root: Root) -> None:
        bad = [entry for entry in self._bad_slots.take_unreadable(root.idx) if self._table.holds(entry)]
        self._table.retire([entry.key for entry in bad])
        self._counters.bad_slots += len(bad)
        self._gone(bad)

    def _resume_expiry(self, root: Root) -> None:
        if self._expiry is not None:
            self._expiry.restore(self._table.entries(root.idx), self._system.wall_microseconds())
