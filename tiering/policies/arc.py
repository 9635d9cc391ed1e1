"""Adaptive replacement as the seed has it (chapter 5.3), with its faults mended.

Rows used once (T1) and used again (T2), and ghost lists of evicted keys (B1, B2) that move the target size of T1.
A key that comes back while it is a ghost starts in T1 again; `tiering.policies.arc_paper` does what the paper does.
Where the list that should give a row has none to give, the other one is asked, and a refused eviction changes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from tiering.keys import OffloadKey
from tiering.policies.policy import EvictionPolicy, hookimpl
from tiering.policies.recency_list import RecencyList, Victim
from tiering.row_table import WRITING, RowTable

__all__ = ["ARCCachePolicy", "tiering_register_policy"]


class ARCCachePolicy(EvictionPolicy):
    """Balances recency (T1) against frequency (T2) by what it evicted too early.

    Attributes:
        target_t1_size: rows that T1 may keep before it is the one to give, 0..num_rows.
    """

    policy_name = "arc"

    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self._t1 = RecencyList(rows)
        self._t2 = RecencyList(rows)
        # Ghosts: keys of evicted rows, oldest first. Taking the oldest out of a plain dict would scan over its gaps.
        self._b1: OrderedDict[OffloadKey, None] = OrderedDict()
        self._b2: OrderedDict[OffloadKey, None] = OrderedDict()
        self._key_of: list[OffloadKey] = [OffloadKey(b"")] * rows.num_rows
        self.target_t1_size = 0.0

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row, key in zip(reversed(rows), reversed(keys), strict=True):
            self._key_of[row] = key
            self._enter(row, key)

    def remove(self, row: int, key: OffloadKey) -> None:
        self._list_of(row).remove(row)

    def touch(self, rows: Iterable[int]) -> None:
        for row in rows:
            if row in self._t1 and self.rows.ref_cnt[row] != WRITING:
                self._t1.remove(row)
                self._t2.append(row)
            else:
                self._list_of(row).move_to_end(row)

    def refresh(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._list_of(row).move_to_end(row)

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        target = self._learn(incoming)
        victims: list[tuple[RecencyList, Victim]] = []
        while len(victims) < num_rows:
            lists = (self._t1, self._t2) if len(self._t1) >= int(target) else (self._t2, self._t1)
            for candidates in lists:
                if (victim := candidates.pop_victim()) is not None:
                    victims.append((candidates, victim))
                    break
            else:
                for candidates, victim in victims:
                    candidates.restore(victim)
                return None
        self.target_t1_size = target
        for ghosts in (self._b1, self._b2):
            for key in reversed(incoming):
                if key in ghosts:
                    ghosts.move_to_end(key)  # it will leave by `insert`, not by the trimming below
        for candidates, victim in victims:
            ghosts = self._b1 if candidates is self._t1 else self._b2
            ghosts[self._key_of[victim.row]] = None
        self._trim_ghosts()
        return [victim.row for _, victim in victims]

    def unblock(self, row: int) -> None:
        self._list_of(row).unblock(row)

    def clear(self) -> None:
        for rows in (self._t1, self._t2):
            rows.clear()
        self._b1.clear()
        self._b2.clear()
        self.target_t1_size = 0.0

    def _list_of(self, row: int) -> RecencyList:
        return self._t1 if row in self._t1 else self._t2

    def _enter(self, row: int, key: OffloadKey) -> None:
        self._b1.pop(key, None)
        self._b2.pop(key, None)
        self._t1.append(row)

    def _learn(self, incoming: Sequence[OffloadKey]) -> float:
        """Return the target after the ghosts among ``incoming``, last first, have pulled at it."""
        target, num_b1, num_b2 = self.target_t1_size, len(self._b1), len(self._b2)
        for key in reversed(incoming):
            if key in self._b1:
                target = min(target + max(1.0, num_b2 / num_b1), self.rows.num_rows)
            elif key in self._b2:
                target = max(target - max(1.0, num_b1 / num_b2), 0.0)
        return target

    def _trim_ghosts(self) -> None:
        for ghosts in (self._b1, self._b2):
            while len(ghosts) > self.rows.num_rows:
                ghosts.popitem(last=False)


@hookimpl
def tiering_register_policy() -> type[EvictionPolicy]:
    return ARCCachePolicy
