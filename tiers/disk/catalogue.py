"""The index of a disk tier in memory and on disk, changed together."""

from __future__ import annotations

from collections.abc import Iterable

from tiering.tier import TierContext
from tiers.disk.bad_slots import BadSlots
from tiers.disk.config import DiskConfig
from tiers.disk.counters import DiskCounters
from tiers.disk.expiry import Expiry
from tiers.disk.root import Root
from tiers.disk.roots import Roots
from tiers.disk.slot_io import Outcome
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
        roots.on_well = self._give_up_bad_slots
        roots.on_back = self._resume_expiry

    def take_slots(self, count: int) -> list[int]:
        """Hand out up to ``count`` slots in ascending order, in exchange for other chunks if need be."""
        slots, victims = self._table.take(count, self._roots.full(), self._roots.unusable())
        self._counters.evicted += len(victims)
        self._gone(victims)
        return slots

    def settle(self, entry: IndexEntry, outcome: Outcome) -> bool:
        """Put a slot whose write has ended where it belongs; say whether the chunk is here now."""
        if outcome is Outcome.DONE:
            return self._put(entry)
        if outcome is Outcome.NO_SPACE:
            self._table.give_back_unbacked(entry.slot)
        elif self._bad_slots.is_bad(entry.slot):
            self._counters.bad_slots += 1
        else:
            self._table.give_back(entry.slot)
        return False

    def _put(self, entry: IndexEntry) -> bool:
        if not self._table.insert(*entry):
            return False
        self._counters.stored += 1
        journal = self._roots.of(entry.slot).journal
        if journal is not None:
            journal.put(entry.key, self._roots.local(entry.slot), entry.generation)
        if self._expiry is not None:
            self._expiry.note(entry)
        return True

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
        for entry in entries:
            journal = self._roots.of(entry.slot).journal
            if journal is not None:
                journal.delete(entry.key)
        if entries:
            self._context.report_evicted([entry.key for entry in entries])

    def _give_up_bad_slots(self, root: Root) -> None:
        bad = [entry for entry in self._bad_slots.take_unreadable(root.idx) if self._table.holds(entry)]
        for entry in bad:
            self._table.retire(entry.key)
        self._counters.bad_slots += len(bad)
        self._gone(bad)

    def _resume_expiry(self, root: Root) -> None:
        if self._expiry is not None:
            self._expiry.restore(self._table.entries(root.idx), self._system.wall_microseconds())
