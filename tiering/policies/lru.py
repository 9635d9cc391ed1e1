"""Least recently used: the default policy (seed, chapter 5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiering.keys import OffloadKey
from tiering.policies.policy import EvictionPolicy, hookimpl
from tiering.policies.recency_list import RecencyList, Victim
from tiering.row_table import RowTable

__all__ = ["LRUCachePolicy", "tiering_register_policy"]


class LRUCachePolicy(EvictionPolicy):
    """Evicts the row whose last use lies furthest back."""

    policy_name = "lru"

    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self._order = RecencyList(rows)

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row in reversed(rows):
            self._order.append(row)

    def remove(self, row: int, key: OffloadKey) -> None:
        self._order.remove(row)

    def touch(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._order.move_to_end(row)

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        victims: list[Victim] = []
        while len(victims) < num_rows:
            victim = self._order.pop_victim()
            if victim is None:
                for taken in victims:
                    self._order.restore(taken)
                return None
            victims.append(victim)
        return [victim.row for victim in victims]

    def unblock(self, row: int) -> None:
        self._order.unblock(row)

    def clear(self) -> None:
        self._order.clear()


@hookimpl
def tiering_register_policy() -> type[EvictionPolicy]:
    return LRUCachePolicy
