"""The rows of the primary tier: which key has which row, who uses it, and the five verbs that change that.

pin / unpin read, reserve / commit / abort write; every flow of the framework is a sentence of these (ARCHITECTURE.md).
Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiering.events import EventLog
from tiering.keys import OffloadKey
from tiering.policies.guarded import GuardedPolicy
from tiering.policies.policy import EvictionPolicy
from tiering.row_table import WRITING, RowTable

__all__ = ["Reservation", "Rows"]


@dataclass(frozen=True, slots=True)
class Reservation:
    """Rows to write, one per key and in the order of the keys, and what was evicted for them."""

    rows: list[int]
    evicted_keys: list[OffloadKey]


class Rows:
    """Key -> row, the free rows, and the verbs.

    A row is free, or held by a key and then being written, read, or idle; or it is *orphaned*: its key was taken
    away, by `clear` or `orphan`, while somebody still copied, and it becomes free when that has ended.
    """

    def __init__(self, table: RowTable, policy: EvictionPolicy, events: EventLog | None = None) -> None:
        self.table = table
        self.index: dict[OffloadKey, int] = {}
        self.num_evictions = 0
        self._events = events
        self._key_of: list[OffloadKey | None] = [None] * table.num_rows
        self._free = list(range(table.num_rows - 1, -1, -1))
        self.policy = GuardedPolicy(policy, table, self._key_of)

    @property
    def num_free(self) -> int:
        """Rows that nobody holds."""
        return len(self._free)

    def keys_of(self, rows: Iterable[int]) -> list[OffloadKey]:
        """Return the keys of rows that have one, in the order given."""
        return [key for row in rows if (key := self._key_of[row]) is not None]

    def lease(self, row: int) -> None:
        """Promise that ``row`` stays until the end of the step."""
        self.table.leases[row] = self.table.step

    def end_step(self) -> None:
        """End all leases. Costs nothing unless a leased row stood in the way of an eviction."""
        table = self.table
        table.step += 1
        if table.blocked_by_lease:
            waiting, table.blocked_by_lease = table.blocked_by_lease, []
            for row in waiting:
                self._unblock(row)

    def reserve(self, keys: Sequence[OffloadKey]) -> Reservation | None:
        """Give each of ``keys`` (distinct, none of them in the index) a row to be written.

        Returns:
            The rows, or None, with nothing changed, if fewer rows than keys are free or evictable.
        """
        if len(keys) > self.table.num_rows:
            return None
        victims = self.policy.evict(max(0, len(keys) - len(self._free)), keys)
        if victims is None:
            return None
        evicted_keys = self._take_keys(victims)
        if evicted_keys:
            self.num_evictions += len(evicted_keys)
            if self._events is not None:
                self._events.removed(evicted_keys)
        self._free += reversed(victims)
        num_left = len(self._free) - len(keys)
        rows = self._free[num_left:]
        rows.reverse()
        del self._free[num_left:]
        ref_cnt, key_of = self.table.ref_cnt, self._key_of
        for key, row in zip(keys, rows, strict=True):
            ref_cnt[row] = WRITING
            key_of[row] = key
        self.index.update(zip(keys, rows, strict=True))
        self.policy.insert(rows, keys)
        return Reservation(rows, evicted_keys)

    def commit(self, rows: Iterable[int]) -> list[OffloadKey]:
        """Make written rows readable; returns their keys, without those that were orphaned meanwhile."""
        keys = []
        for row in rows:
            key = self._key_of[row]
            self.table.ref_cnt[row] = 0
            if key is None:
                self._free.append(row)
                continue
            keys.append(key)
            if self.table.blocked[row]:
                self._unblock(row)
        if keys and self._events is not None:
            self._events.stored(keys)
        return keys

    def abort(self, rows: Iterable[int]) -> None:
        """Give up rows being written; their keys are absent again."""
        rows = list(rows)
        self.orphan(rows)
        for row in rows:
            self.table.ref_cnt[row] = 0
            self._free.append(row)

    def orphan(self, rows: Iterable[int]) -> None:
        """Take the keys away from rows being written: absent for all, but not reused until the write has ended."""
        for row in rows:
            key = self._key_of[row]
            if key is not None:
                self.policy.remove(row, key)
                self._take_keys([row])

    def give_key(self, row: int, key: OffloadKey) -> None:
        """Take back an `orphan`: ``row``, still being written, is the row of ``key`` (which has none) again."""
        self._key_of[row] = key
        self.index[key] = row
        self.policy.insert([row], [key])

    def pin(self, rows: Iterable[int]) -> None:
        """Count one more reader on each row; all of them are readable."""
        ref_cnt = self.table.ref_cnt
        for row in rows:
            ref_cnt[row] += 1

    def unpin(self, rows: Iterable[int]) -> None:
        """Count one reader less on each row; the last one to leave makes it evictable, or free if orphaned."""
        ref_cnt, blocked, key_of = self.table.ref_cnt, self.table.blocked, self._key_of
        for row in rows:
            ref_cnt[row] -= 1
            if ref_cnt[row] == 0:
                if key_of[row] is None:
                    self._free.append(row)
                elif blocked[row]:
                    self._unblock(row)

    def clear(self) -> None:
        """Take all keys away at once. Rows that somebody copies to or from are orphaned, all others are free."""
        if self._events is not None:
            self._events.removed([key for key, row in self.index.items() if self.table.ref_cnt[row] != WRITING])
        for row in self.index.values():
            self._key_of[row] = None
            self.table.blocked[row] = 0
            if self.table.ref_cnt[row] == 0:
                self._free.append(row)
        self.index.clear()
        self.policy.clear()

    def num_busy(self) -> int:
        """Rows being written or read, orphaned ones included. Walks over all rows: for tests and tools."""
        return sum(1 for count in self.table.ref_cnt if count)

    def _take_keys(self, rows: Sequence[int]) -> list[OffloadKey]:
        keys = self.keys_of(rows)
        for row, key in zip(rows, keys, strict=True):
            self._key_of[row] = None
            self.table.blocked[row] = 0
            del self.index[key]
        return keys

    def _unblock(self, row: int) -> None:
        if self.table.blocked[row] and self.table.ref_cnt[row] == 0:
            self.table.blocked[row] = 0
            self.policy.unblock(row)
