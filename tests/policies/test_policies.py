"""Built-in policies against their plain forms, and a third party's policy through the door."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Sequence

import pytest
from plain_policies import PlainARC, PlainLRU, PlainPaperARC

from tiering.config_file import parse_config
from tiering.keys import OffloadKey, make_offload_key
from tiering.policies.policy import EvictionPolicy
from tiering.policies.recency_list import RecencyList, Victim
from tiering.primary import CPUOffloadingManager
from tiering.registry import register_policy
from tiering.request import ReqContext
from tiering.rows import RowTable
from tiering.testing import check_quiescent

NUM_ROWS = 10


def keys(*numbers: int) -> list[OffloadKey]:
    return [make_offload_key(number.to_bytes(4, "big"), 0) for number in numbers]


@pytest.mark.parametrize(("name", "plain"), [("lru", PlainLRU), ("arc", PlainARC), ("arc_paper", PlainPaperARC)])
@pytest.mark.parametrize("seed", range(15))
def test_victims_are_those_of_the_plain_form(name: str, plain: type[EvictionPolicy], seed: int) -> None:
    """Random requests with loads and stores that stay open, fail and end in any order, and leases within each step."""
    choose = random.Random(seed)
    both = [CPUOffloadingManager(NUM_ROWS, policy) for policy in (name, plain)]
    stores: list[OffloadKey] = []
    loads: list[list[OffloadKey]] = []
    for number in range(1_500):
        request = ReqContext(f"request {number // 7 % 5}")
        wanted = keys(*[int(30 * choose.random() ** 2) for _ in range(choose.randint(1, 5))])
        match choose.randrange(10):
            case 0 | 1 | 2:
                granted = [manager.prepare_store(wanted, request) for manager in both]
                assert (granted[0] is None) == (granted[1] is None)
                if granted[0] is not None and granted[1] is not None:
                    assert granted[0].evicted_keys == granted[1].evicted_keys
                    assert granted[0].keys_to_store == granted[1].keys_to_store
                    stores += granted[0].keys_to_store
            case 3 | 4:
                choose.shuffle(stores)
                ended, stores = stores[:3], stores[3:]
                success = choose.random() < 0.8
                for manager in both:
                    manager.complete_store(ended, success)
            case 5:
                found = {manager.lookup_prefix(wanted, request) for manager in both}
                assert len(found) == 1
                if num_ready := found.pop().num_ready:
                    loads.append(wanted[:num_ready])
                    for manager in both:
                        manager.prepare_load(wanted[:num_ready], request)
            case 6 if loads:
                ended = loads.pop(choose.randrange(len(loads)))
                for manager in both:
                    manager.complete_load(ended)
            case 7:
                for manager in both:
                    manager.touch(wanted)
            case 8:
                for manager in both:
                    manager.on_request_finished(request)
            case 9 if number % 100 == 0 and not stores and not loads:
                for manager in both:
                    manager.reset_cache()
        if choose.random() < 0.6:
            for manager in both:
                manager.on_schedule_end()
        assert both[0].rows.index.keys() == both[1].rows.index.keys()
    for manager in both:
        assert manager.rows.num_evictions > 50
        manager.complete_store(stores)
        for ended in loads:
            manager.complete_load(ended)
        for number in range(5):
            manager.on_request_finished(ReqContext(f"request {number}"))
        check_quiescent(manager, NUM_ROWS)


class FirstInFirstOut(EvictionPolicy):
    """What a third party may write: evicts in the order of arrival, however often a row is used."""

    policy_name = "first_in_first_out"

    def __init__(self, rows: RowTable) -> None:
        super().__init__(rows)
        self._order = RecencyList(rows)

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        for row in reversed(rows):
            self._order.append(row)

    def remove(self, row: int, key: OffloadKey) -> None:
        self._order.remove(row)

    def touch(self, rows: Iterable[int]) -> None:
        pass

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


def test_a_third_party_writes_a_policy_in_sixty_lines() -> None:
    assert len(inspect.getsource(FirstInFirstOut).splitlines()) <= 60
    register_policy(FirstInFirstOut)
    config = parse_config({"cpu_bytes_to_use": "1MiB", "eviction_policy": "first_in_first_out"}, source="test")
    manager = CPUOffloadingManager(3, config.eviction_policy)
    for number in (1, 2, 3):
        store = manager.prepare_store(keys(number), ReqContext())
        assert store is not None
        manager.complete_store(store.keys_to_store)
    manager.on_schedule_end()
    manager.touch(keys(1))
    manager.prepare_load(keys(2), ReqContext())
    assert [manager.prepare_store(keys(n), ReqContext()).evicted_keys for n in (4, 5)] == [keys(1), keys(3)]  # type: ignore[union-attr]
    manager.complete_load(keys(2))
    manager.complete_store(keys(4, 5))
    assert manager.prepare_store(keys(6), ReqContext()).evicted_keys == keys(2)  # type: ignore[union-attr]
    manager.complete_store(keys(6))
    manager.on_schedule_end()
    check_quiescent(manager, 3)


def test_the_ghosts_of_the_paper_have_the_room_it_gives_them() -> None:
    manager = CPUOffloadingManager(NUM_ROWS, "arc_paper")
    policy = manager.rows.policy.policy
    choose = random.Random(1)
    for number in range(3_000):
        wanted = keys(*[int(40 * choose.random() ** 2) for _ in range(choose.randint(1, 6))])
        request = ReqContext(f"request {number}")
        if (store := manager.prepare_store(wanted, request)) is not None:
            manager.complete_store(store.keys_to_store)
        manager.on_request_finished(request)
        recent, again = len(policy._t1), len(policy._t2)
        assert recent + len(policy._b1) <= NUM_ROWS
        assert recent + again + len(policy._b1) + len(policy._b2) <= 2 * NUM_ROWS


@pytest.mark.parametrize("name", ["lru", "arc", "arc_paper"])
def test_a_refused_eviction_changes_nothing(name: str) -> None:
    twins = [CPUOffloadingManager(6, name) for _ in range(2)]
    for manager in twins:
        for number in (*range(9), *range(4), *range(20, 26), 0, 1):
            request = ReqContext(f"for {number}")
            store = manager.prepare_store(keys(number), request)
            assert store is not None
            manager.complete_store(store.keys_to_store)
            manager.on_request_finished(request)
            manager.on_schedule_end()
        manager.prepare_load(list(manager.rows.index)[2:4], ReqContext())
    for _ in range(3):
        assert twins[0].prepare_store(keys(*range(2, 8)), ReqContext()) is None, "ghosts among them teach nothing"
    orders: list[list[OffloadKey]] = [[], []]
    for manager, order in zip(twins, orders, strict=True):
        for number in range(100, 104):
            manager.on_schedule_end()
            store = manager.prepare_store(keys(number), ReqContext())
            assert store is not None
            order += store.evicted_keys
    assert orders[0] == orders[1]
    assert len(orders[0]) == 4
