"""The conformance suite of eviction policies: subclass it in a test module and name the policy.

```python
class TestFirstInFirstOut(PolicyTests):
    policy = FirstInFirstOut
```
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

from tiering.keys import OffloadKey, make_offload_key
from tiering.policies.policy import EvictionPolicy
from tiering.primary import CPUOffloadingManager
from tiering.registry import resolve_policy
from tiering.request import ReqContext
from tiering.row_table import WRITING, RowTable
from tiering.testing.quiescence import check_quiescent
from tiering.testing.remembered import container_sizes

__all__ = ["PolicyTests"]

_NUM_ROWS = 8


class PolicyTests:
    """Every rule of `tiering.policies.policy.EvictionPolicy` as a test.

    Attributes:
        policy: the class under test, or the name that it is installed under.
        remembered_per_row: how many entries the policy may keep per row, over all its containers together.
    """

    policy: ClassVar[type[EvictionPolicy] | str]
    remembered_per_row: ClassVar[int] = 24

    def test_victims_are_distinct_rows_that_may_go(self) -> None:
        """The chosen rows are forgotten: nobody is chosen twice."""
        table, policy = self._filled()
        table.ref_cnt[2], table.ref_cnt[5], table.leases[6] = 1, WRITING, table.step
        victims = policy.evict(5, [_key(100)])
        assert victims is not None
        assert len(victims) == 5
        assert set(victims) == {0, 1, 3, 4, 7}
        assert policy.evict(1, [_key(101)]) is None, "a row was given up twice"

    def test_nothing_may_be_asked_for(self) -> None:
        _, policy = self._filled()
        assert policy.evict(0, []) == []
        assert policy.evict(0, [_key(100)]) == []
        victims = policy.evict(_NUM_ROWS, [])
        assert victims is not None
        assert sorted(victims) == list(range(_NUM_ROWS))

    def test_a_refusal_changes_nothing(self) -> None:
        """Neither the order nor what was learnt: a twin that was never asked goes on in the same way."""
        orders = []
        for num_refusals in (0, 3):
            manager = self._manager_with_history()
            held = list(manager.rows.index)[2:4]
            manager.prepare_load(held, ReqContext())
            for _ in range(num_refusals):
                assert manager.prepare_store([_key(number) for number in range(300, 307)], ReqContext()) is None
            order: list[OffloadKey] = []
            for number in range(400, 406):
                manager.on_schedule_end()
                store = manager.prepare_store([_key(number)], ReqContext())
                assert store is not None
                order += store.evicted_keys
            orders.append(order)
        assert orders[0] == orders[1]

    def test_a_row_that_could_not_go_may_go_later(self) -> None:
        """Readers leave, writes end, the step ends: then all rows can be had at once."""
        manager = self._manager_with_history()
        chunks = list(manager.rows.index)
        manager.prepare_load(chunks[:3], ReqContext())
        manager.lookup_prefix([chunks[4]], ReqContext())
        for number in (300, 301):
            store = manager.prepare_store([_key(number)], ReqContext())
            assert store is not None
            assert not {*chunks[:3], chunks[4]} & set(store.evicted_keys)
        assert manager.prepare_store([_key(number) for number in range(310, 313)], ReqContext()) is None
        manager.complete_load(chunks[:3])
        manager.complete_store([_key(300)])
        manager.complete_store([_key(301)], success=False)
        manager.on_schedule_end()
        check_quiescent(manager, _NUM_ROWS)

    def test_the_head_of_a_prefix_outlives_its_tail(self) -> None:
        policy = self._make(RowTable(4))
        policy.insert([3, 1, 0, 2], [_key(number) for number in range(4)])
        order = [policy.evict(1, [_key(100 + number)]) for number in range(4)]
        assert order == [[2], [0], [1], [3]]

    def test_a_removed_row_is_forgotten(self) -> None:
        """It comes back as another chunk's."""
        _, policy = self._filled()
        for row in (0, 4, 7):
            policy.remove(row, _key(row))
        assert policy.evict(_NUM_ROWS - 2, []) is None
        policy.insert([4], [_key(104)])
        victims = policy.evict(_NUM_ROWS - 2, [])
        assert victims is not None
        assert sorted(victims) == [1, 2, 3, 4, 5, 6]

    def test_after_a_clear_nothing_is_known(self) -> None:
        orders = []
        for has_past in (False, True):
            table = RowTable(_NUM_ROWS)
            policy = self._make(table)
            if has_past:
                keys = [_key(number) for number in range(_NUM_ROWS)]
                policy.insert(list(range(_NUM_ROWS)), keys)
                policy.touch([3, 1, 4])
                table.ref_cnt[0] = 1
                assert policy.evict(4, keys) is not None
                table.ref_cnt[0] = 0
                table.blocked[0] = 0
                policy.clear()
                assert policy.evict(1, []) is None
            policy.insert([2, 0, 1], [_key(number) for number in (2, 0, 1)])
            orders.append([policy.evict(1, [_key(50 + number)]) for number in range(3)])
        assert orders[0] == orders[1]

    def test_the_same_history_has_the_same_victims(self) -> None:
        assert self._play(1) == self._play(1)

    def test_it_lives_with_every_history(self) -> None:
        """Loads and stores that stay open, fail and end in any order; afterwards every row can be had."""
        for seed in range(10):
            self._play(seed)

    def test_a_victim_costs_the_same_however_many_rows_there_are(self) -> None:
        """In lines of Python that are run, with most of the rows pinned."""
        few, many = (self._lines_per_victim(num_rows) for num_rows in (50, 5_000))
        assert many <= 3 * few + 20, f"{few} lines with 50 rows, {many} with 5,000"

    def test_what_is_remembered_is_bounded(self) -> None:
        manager = CPUOffloadingManager(_NUM_ROWS, self._class())
        module = self._class().__module__.partition(".")[0]
        for number in range(3_000):
            store = manager.prepare_store([_key(number)], ReqContext())
            assert store is not None
            manager.complete_store(store.keys_to_store)
            if number % 3 == 0:
                manager.prepare_load([_key(number)], ReqContext())
                manager.complete_load([_key(number)])
            if number % 5 == 0:
                manager.touch([_key(number)])
            manager.on_schedule_end()
        sizes = container_sizes(manager.rows.policy.policy, module)
        assert sum(sizes.values()) <= self.remembered_per_row * _NUM_ROWS, sizes

    @classmethod
    def _class(cls) -> type[EvictionPolicy]:
        return resolve_policy(cls.policy) if isinstance(cls.policy, str) else cls.policy

    def _make(self, table: RowTable) -> EvictionPolicy:
        return self._class()(table)

    def _filled(self) -> tuple[RowTable, EvictionPolicy]:
        table = RowTable(_NUM_ROWS)
        table.step = 1
        policy = self._make(table)
        policy.insert(list(range(_NUM_ROWS)), [_key(row) for row in range(_NUM_ROWS)])
        return table, policy

    def _manager_with_history(self) -> CPUOffloadingManager:
        """All rows taken, some chunks used again, some evicted and come back."""
        manager = CPUOffloadingManager(_NUM_ROWS, self._class())
        for number in (*range(12), *range(5), *range(20, 28), 0, 1, 22):
            request = ReqContext(f"for {number}")
            store = manager.prepare_store([_key(number)], request)
            assert store is not None
            manager.complete_store(store.keys_to_store)
            manager.on_request_finished(request)
            manager.on_schedule_end()
        return manager

    def _play(self, seed: int) -> list[OffloadKey]:
        draw = random.Random(seed)
        manager = CPUOffloadingManager(_NUM_ROWS, self._class())
        stores: list[OffloadKey] = []
        loads: list[list[OffloadKey]] = []
        evicted: list[OffloadKey] = []
        for _ in range(600):
            request = ReqContext(f"request {draw.randrange(3)}")
            chunks = [_key(int(24 * draw.random() ** 2)) for _ in range(draw.randint(1, 4))]
            match draw.randrange(7):
                case 0 | 1:
                    store = manager.prepare_store(chunks, request)
                    if store is not None:
                        evicted += store.evicted_keys
                        stores += store.keys_to_store
                case 2 | 3:
                    draw.shuffle(stores)
                    manager.complete_store(stores[:3], draw.random() < 0.8)
                    del stores[:3]
                case 4:
                    found = manager.lookup_prefix(chunks, request)
                    manager.prepare_load(chunks[: found.num_ready], request)
                    loads.append(chunks[: found.num_ready])
                case 5 if loads:
                    manager.complete_load(loads.pop(draw.randrange(len(loads))))
                case 6:
                    manager.on_request_finished(request)
            if draw.random() < 0.6:
                manager.on_schedule_end()
            assert isinstance(manager.rows.policy.policy, self._class()), "it was replaced: the log says why"
        assert evicted
        manager.complete_store(stores)
        for load in loads:
            manager.complete_load(load)
        for number in range(3):
            manager.on_request_finished(ReqContext(f"request {number}"))
        check_quiescent(manager, _NUM_ROWS)
        return evicted

    def _lines_per_victim(self, num_rows: int) -> int:
        table = RowTable(num_rows)
        policy = self._make(table)
        for row in range(num_rows):
            policy.insert([row], [_key(row)])
            table.ref_cnt[row] = int(row < num_rows - 40)
        policy.evict(4, [_key(num_rows + number) for number in range(4)])  # pays for what is pinned, once
        with _counted_lines() as count:
            for number in range(10):
                assert policy.evict(1, [_key(2 * num_rows + number)]) is not None
        return count[0] // 10


@contextmanager
def _counted_lines() -> Iterator[list[int]]:
    """Count the lines of Python that are run; whatever traced before, such as a coverage tool, does not meanwhile."""
    count = [0]

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        count[0] += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def _key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(8, "big"), 0)
