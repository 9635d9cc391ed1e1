"""The policies written down as in the books, over ordered dicts that are searched from the front.

Slow, and easy to see through: what the real ones have to agree with, victim for victim. Keys and rows are as in the
seed (chapter 5), except where this project departs from it on purpose: a policy learns from ghosts when it is asked for
victims, and ARC asks its other list where the first one has none to give.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice

from tiering.keys import OffloadKey
from tiering.policies.policy import EvictionPolicy
from tiering.rows import WRITING


class PlainLRU(EvictionPolicy):
    policy_name = "plain_lru"

    def __init__(self, rows) -> None:  # type: ignore[no-untyped-def]
        super().__init__(rows)
        self.order: OrderedDict[int, None] = OrderedDict()

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row in reversed(rows):
            self.order[row] = None

    def remove(self, row: int, key: OffloadKey) -> None:
        del self.order[row]

    def touch(self, rows: Iterable[int]) -> None:
        for row in rows:
            self.order.move_to_end(row)

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        victims = list(islice((row for row in self.order if self.rows.is_evictable(row)), num_rows))
        if len(victims) < num_rows:
            return None
        for row in victims:
            del self.order[row]
        return victims

    def unblock(self, row: int) -> None:
        pass

    def clear(self) -> None:
        self.order.clear()


class PlainARC(EvictionPolicy):
    policy_name = "plain_arc"

    def __init__(self, rows) -> None:  # type: ignore[no-untyped-def]
        super().__init__(rows)
        self.clear()

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row, key in zip(reversed(rows), reversed(keys), strict=True):
            self.enter(row, key)
            self.b1.pop(key, None)
            self.b2.pop(key, None)

    def enter(self, row: int, key: OffloadKey) -> None:
        self.t1[row] = key

    def remove(self, row: int, key: OffloadKey) -> None:
        self.t1.pop(row, None)
        self.t2.pop(row, None)

    def touch(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row in self.t1 and self.rows.ref_cnt[row] != WRITING:
                self.t2[row] = self.t1.pop(row)
            else:
                self.refresh([row])

    def refresh(self, rows: Iterable[int]) -> None:
        for row in rows:
            (self.t1 if row in self.t1 else self.t2).move_to_end(row)

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        target = self.target
        for key in reversed(incoming):
            if key in self.b1:
                target = min(target + max(1, len(self.b2) / len(self.b1)), self.rows.num_rows)
            elif key in self.b2:
                target = max(target - max(1, len(self.b1) / len(self.b2)), 0)
        from_t1 = [row for row in self.t1 if self.rows.is_evictable(row)]
        from_t2 = [row for row in self.t2 if self.rows.is_evictable(row)]
        if len(from_t1) + len(from_t2) < num_rows:
            return None
        self.target = target
        for key in reversed(incoming):
            for ghosts in (self.b1, self.b2):
                if key in ghosts:
                    ghosts.move_to_end(key)
        victims = []
        for _ in range(num_rows):
            prefers_t1 = len(self.t1) >= int(target)
            if from_t1 and (prefers_t1 or not from_t2):
                row = from_t1.pop(0)
                self.b1[self.t1.pop(row)] = None
            else:
                row = from_t2.pop(0)
                self.b2[self.t2.pop(row)] = None
            victims.append(row)
        self.trim()
        return victims

    def trim(self) -> None:
        for ghosts in (self.b1, self.b2):
            while len(ghosts) > self.rows.num_rows:
                ghosts.popitem(last=False)

    def unblock(self, row: int) -> None:
        pass

    def clear(self) -> None:
        self.t1: OrderedDict[int, OffloadKey] = OrderedDict()
        self.t2: OrderedDict[int, OffloadKey] = OrderedDict()
        self.b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self.b2: OrderedDict[OffloadKey, None] = OrderedDict()
        self.target = 0.0


class PlainPaperARC(PlainARC):
    policy_name = "plain_arc_paper"

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows, keys)
        self.trim()

    def enter(self, row: int, key: OffloadKey) -> None:
        (self.t2 if key in self.b1 or key in self.b2 else self.t1)[row] = key

    def trim(self) -> None:
        while self.b1 and len(self.t1) + len(self.b1) > self.rows.num_rows:
            self.b1.popitem(last=False)
        while self.b2 and sum(map(len, (self.t1, self.t2, self.b1, self.b2))) > 2 * self.rows.num_rows:
            self.b2.popitem(last=False)
