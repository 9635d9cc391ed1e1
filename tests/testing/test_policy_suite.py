"""The conformance suite of policies finds each rule that is broken."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import pytest

from tiering.keys import OffloadKey
from tiering.policies.policy import EvictionPolicy
from tiering.policies.recency_list import RecencyList, Victim
from tiering.row_table import RowTable
from tiering.testing import PolicyTests


class FirstInFirstOut(EvictionPolicy):
    """The good policy that the bad ones are made of."""

    policy_name = "first_in_first_out"

    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self.order = RecencyList(rows)

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row in reversed(rows):
            self.order.append(row)

    def remove(self, row: int, key: OffloadKey) -> None:
        self.order.remove(row)

    def touch(self, rows: Iterable[int]) -> None:
        pass

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        victims: list[Victim] = []
        while len(victims) < num_rows:
            victim = self.order.pop_victim()
            if victim is None:
                self.give_back(victims)
                return None
            victims.append(victim)
        return [victim.row for victim in victims]

    def give_back(self, victims: list[Victim]) -> None:
        for victim in victims:
            self.order.restore(victim)

    def unblock(self, row: int) -> None:
        self.order.unblock(row)

    def clear(self) -> None:
        self.order.clear()


class ShortOfOne(FirstInFirstOut):
    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        victims = super().evict(num_rows, incoming)
        if victims is not None and len(victims) == 5 and self.rows.leases[6] == self.rows.step:
            return victims[:4]
        return victims


class AlwaysGivesOne(FirstInFirstOut):
    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        if not incoming and num_rows == 0:
            return super().evict(1, incoming)
        return super().evict(num_rows, incoming)


class LosesItsPlace(FirstInFirstOut):
    """A refused eviction puts its victims back as the most recent ones."""

    def give_back(self, victims: list[Victim]) -> None:
        for victim in reversed(victims):
            self.order.append(victim.row)


class ForgetsWhoWasPinned(FirstInFirstOut):
    def unblock(self, row: int) -> None:
        pass


class TailLast(FirstInFirstOut):
    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows[::-1], keys)


class RemovesTooLate(FirstInFirstOut):
    def remove(self, row: int, key: OffloadKey) -> None:
        super().remove(row, key)
        if row == 0 and self.rows.step == 1:
            self.order.append(row)


class ClearsHalf(FirstInFirstOut):
    order_seen = False

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows[::-1] if self.order_seen and len(rows) == 3 else rows, keys)

    def touch(self, rows: Iterable[int]) -> None:
        self.order_seen = True


class HasMoods(FirstInFirstOut):
    """Every second one made takes pairs the other way round."""

    num_made = 0

    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        HasMoods.num_made += 1
        self.mood = HasMoods.num_made % 2

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows[::-1] if self.mood and len(rows) == 2 else rows, keys)


class SearchesFromTheFront(FirstInFirstOut):
    """Over an ordered dict, as one would write it first."""

    def __init__(self, rows: RowTable) -> None:
        self.plain: OrderedDict[int, None] = OrderedDict()
        super().__init__(rows)

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row in reversed(rows):
            self.plain[row] = None

    def remove(self, row: int, key: OffloadKey) -> None:
        del self.plain[row]

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        victims = []
        for row in self.plain:
            if len(victims) < num_rows and self.rows.is_evictable(row):
                victims.append(row)
        if len(victims) < num_rows:
            return None
        for row in victims:
            del self.plain[row]
        return victims

    def unblock(self, row: int) -> None:
        pass

    def clear(self) -> None:
        self.plain.clear()


class RemembersAllKeys(FirstInFirstOut):
    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self.seen: set[OffloadKey] = set()

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows, keys)
        self.seen.update(keys)


class StumblesOverReturningChunks(FirstInFirstOut):
    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self.num_removed = 0

    def remove(self, row: int, key: OffloadKey) -> None:
        self.num_removed += 1
        if self.num_removed > 20:
            raise KeyError(key)
        super().remove(row, key)


BAD_POLICIES: dict[str, type[EvictionPolicy]] = {
    "test_victims_are_distinct_rows_that_may_go": ShortOfOne,
    "test_nothing_may_be_asked_for": AlwaysGivesOne,
    "test_a_refusal_changes_nothing": LosesItsPlace,
    "test_a_row_that_could_not_go_may_go_later": ForgetsWhoWasPinned,
    "test_the_head_of_a_prefix_outlives_its_tail": TailLast,
    "test_a_removed_row_is_forgotten": RemovesTooLate,
    "test_after_a_clear_nothing_is_known": ClearsHalf,
    "test_the_same_history_has_the_same_victims": HasMoods,
    "test_it_lives_with_every_history": StumblesOverReturningChunks,
    "test_a_victim_costs_the_same_however_many_rows_there_are": SearchesFromTheFront,
    "test_what_is_remembered_is_bounded": RemembersAllKeys,
}

ALSO_FAIL = {
    # What is never given back is missed in every longer history as well.
    ForgetsWhoWasPinned: {"test_it_lives_with_every_history", "test_the_same_history_has_the_same_victims"},
    # It is replaced.
    AlwaysGivesOne: {"test_it_lives_with_every_history", "test_the_same_history_has_the_same_victims"},
    StumblesOverReturningChunks: {"test_the_same_history_has_the_same_victims"},
}

RULES = sorted(name for name, _ in inspect.getmembers(PolicyTests, inspect.isfunction) if name.startswith("test_"))


def test_the_good_one_passes() -> None:
    suite = type("GoodPolicyTests", (PolicyTests,), {"policy": FirstInFirstOut})()
    for name in RULES:
        getattr(suite, name)()


def test_every_rule_has_a_policy_that_breaks_it() -> None:
    assert sorted(BAD_POLICIES) == RULES


@pytest.mark.parametrize("test", RULES)
def test_a_bad_policy_fails_at_its_rule(test: str) -> None:
    policy = BAD_POLICIES[test]
    suite = type("BadPolicyTests", (PolicyTests,), {"policy": policy})()
    failed = {name for name in RULES if fails(getattr(suite, name))}
    assert failed == {test} | ALSO_FAIL.get(policy, set())


def fails(rule: Callable[[], None]) -> bool:
    try:
        rule()
    except Exception:
        return True
    return False
