"""Recency lists against a plain Python list that is searched from the front."""

from __future__ import annotations

import random

import pytest

from tiering.policies.recency_list import RecencyList
from tiering.rows import WRITING, RowTable

NUM_ROWS = 12


class Pair:
    """The list under test and its model over one row table, with `unblock` called as the core calls it."""

    def __init__(self) -> None:
        self.table = RowTable(NUM_ROWS)
        self.real = RecencyList(self.table)
        self.model: list[int] = []

    def release(self, row: int) -> None:
        self.table.ref_cnt[row] = 0
        self.let_back(row)

    def let_back(self, row: int) -> None:
        if self.table.blocked[row] and self.table.ref_cnt[row] == 0:
            self.table.blocked[row] = 0
            self.real.unblock(row)

    def end_step(self) -> None:
        self.table.step += 1
        waiting, self.table.blocked_by_lease = self.table.blocked_by_lease, []
        for row in waiting:
            self.let_back(row)

    def victims(self, count: int) -> list[int]:
        """Victims that the model names, without taking them out."""
        return [row for row in self.model if self.table.is_evictable(row)][:count]


@pytest.mark.parametrize("seed", range(40))
def test_order_is_exact_whatever_cannot_be_evicted_meanwhile(seed: int) -> None:
    choose = random.Random(seed)
    pair = Pair()
    for _ in range(600):
        outside = [row for row in range(NUM_ROWS) if row not in pair.model]
        action = choose.randrange(9)
        if action <= 1 and outside:
            row = choose.choice(outside)
            pair.table.ref_cnt[row] = choose.choice([WRITING, 0])
            pair.real.append(row)
            pair.model.append(row)
        elif action == 2 and pair.model:
            row = choose.choice(pair.model)
            pair.real.move_to_end(row)
            pair.model.remove(row)
            pair.model.append(row)
        elif action == 3 and pair.model:
            row = choose.choice(pair.model)
            if choose.random() < 0.5:
                pair.real.remove(row)
                pair.model.remove(row)
                pair.table.ref_cnt[row] = 0
        elif action == 4 and pair.model:
            row = choose.choice(pair.model)
            pair.table.ref_cnt[row] = max(1, pair.table.ref_cnt[row])
        elif action == 5 and pair.model:
            pair.release(choose.choice(pair.model))
        elif action == 6 and pair.model:
            pair.table.leases[choose.choice(pair.model)] = pair.table.step
        elif action == 7:
            pair.end_step()
        else:
            count = choose.randint(1, 4)
            expected = pair.victims(count)
            taken = []
            while len(taken) < count and (victim := pair.real.pop_victim()) is not None:
                taken.append(victim)
            assert [victim.row for victim in taken] == expected
            if len(taken) < count or choose.random() < 0.3:
                for victim in taken:
                    pair.real.restore(victim)
            else:
                pair.model = [row for row in pair.model if row not in expected]
        assert len(pair.real) == len(pair.model)
        assert [row in pair.real for row in range(NUM_ROWS)] == [row in pair.model for row in range(NUM_ROWS)]
        assert len(pair.real._returned) <= NUM_ROWS, "what came back must not pile up"
    for row in range(NUM_ROWS):
        pair.release(row)
    pair.end_step()
    order = list(iter(pair.real.pop_victim, None))
    assert [victim.row for victim in order] == pair.model
    assert pair.real.pop_victim() is None


def test_a_blocked_row_keeps_its_place_among_those_that_came_and_went() -> None:
    pair = Pair()
    for row in range(6):
        pair.real.append(row)
    pair.table.ref_cnt[0] = pair.table.ref_cnt[2] = 1
    assert pair.real.pop_victim() is not None  # row 1, past row 0
    pair.release(0)
    pair.real.append(6)
    order = list(iter(pair.real.pop_victim, None))
    assert [victim.row for victim in order] == [0, 3, 4, 5, 6]
    pair.release(2)
    victim = pair.real.pop_victim()
    assert victim is not None
    assert victim.row == 2


def test_clear_forgets_what_was_put_aside() -> None:
    pair = Pair()
    for row in range(4):
        pair.real.append(row)
    pair.table.ref_cnt[0] = 1
    assert pair.real.pop_victim() is not None
    pair.real.clear()
    assert (len(pair.real), pair.real.pop_victim()) == (0, None)
    pair.release(0)
    assert pair.real.pop_victim() is None
    pair.real.append(0)
    victim = pair.real.pop_victim()
    assert victim is not None
    assert victim.row == 0
