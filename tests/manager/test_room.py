"""Who gets a row, who loses one, and what it costs to decide."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, Rig, key, keys

from tiering.policies.arc import ARCCachePolicy
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.testing import check_quiescent


def eviction_order(rig: Rig, count: int, first_fresh: int = 500) -> list[bytes]:
    """Take all rows over one at a time; return the keys that go, in order."""
    order: list[bytes] = []
    for number in range(first_fresh, first_fresh + count):
        request = ReqContext(f"taker {number}")
        order += rig.store(request, key(number)).evicted_keys
        rig.end_jobs()
    return order


def test_tc_19_a_hit_is_still_there_at_prepare_load(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy)
    rig.fill(*keys(1, 2, 3, 4))
    assert rig.statuses(R1, *keys(1, 2, 3, 4)) == [READY] * 4
    assert rig.manager.prepare_store(keys(5, 6, 7), R2) is None
    rig.load(R1, *keys(1, 2, 3, 4))
    rig.step()
    store = rig.store(R2, *keys(5, 6, 7))
    assert set(store.evicted_keys) == set(keys(4, 3, 2)), "with the step the promise ends"
    rig.finish(R1, R2)
    rig.end_jobs()
    rig.check()


def test_tc_19_a_promotion_evicts_no_hit_of_the_step(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy, promotion_limit=1.0)
    rig.fill(*keys(1, 2, 3, 4))
    rig.tier.objects.add(key(9))
    assert rig.statuses(R1, *keys(1, 2, 3, 4)) == [READY] * 4
    assert rig.statuses(R2, key(9)) == [ABSENT]
    rig.load(R1, *keys(1, 2, 3, 4))
    rig.step()
    assert rig.statuses(R2, key(9)) == [PENDING]
    rig.wait(R2, keys(9))
    rig.load(R2, key(9))
    rig.finish(R1, R2)
    rig.check()


def test_tc_20_arc_takes_from_the_other_list() -> None:
    manager = CPUOffloadingManager(6, "arc")
    arc = manager.rows.policy.policy
    assert isinstance(arc, ARCCachePolicy)
    for number in range(60):  # ghosts of T1 come back: the target grows
        store(manager, number % 9)
    for number in (101, 102, 103) * 2:  # used again by another request: T2
        store(manager, number)
    manager.prepare_load(keys(101, 102, 103), R3)
    for number in (104, 105, 106):
        store(manager, number)
    assert (len(arc._t1), len(arc._t2), arc.target_t1_size) == (3, 3, 6)
    before = dict(manager.rows.index)
    assert manager.prepare_store(keys(201, 202, 203, 204), R1) is None
    assert (manager.rows.index, len(arc._t1), len(arc._t2), arc.target_t1_size) == (before, 3, 3, 6)
    for count in (1, 2, 3):
        granted = manager.prepare_store(keys(*range(210, 210 + count)), R1)
        assert granted is not None
        manager.complete_store(granted.keys_to_store)
        manager.on_schedule_end()
    assert set(keys(101, 102, 103)) <= manager.rows.index.keys()
    manager.complete_load(keys(101, 102, 103))
    manager.on_request_finished(R1)
    manager.on_request_finished(R3)
    check_quiescent(manager, 6)


@pytest.mark.parametrize("policy", ["arc", "arc_paper"])
def test_tc_20_the_ghosts_of_arc_are_bounded(policy: str) -> None:
    manager = CPUOffloadingManager(6, policy)
    arc = manager.rows.policy.policy
    assert isinstance(arc, ARCCachePolicy)
    targets = set()
    for number in range(10_000):
        store(manager, number * 7 % 3001 if number % 3 else number % 10)
        assert max(len(arc._b1), len(arc._b2)) <= 6
        assert 0 <= arc.target_t1_size <= 6
        targets.add(arc.target_t1_size)
    assert len(targets) > 1, "the stream must have taught it something"
    check_quiescent(manager, 6)


def store(manager: CPUOffloadingManager, number: int) -> None:
    request = ReqContext(f"for {number}")
    granted = manager.prepare_store(keys(number), request)
    assert granted is not None
    manager.complete_store(granted.keys_to_store)
    manager.on_request_finished(request)
    manager.on_schedule_end()


def test_tc_22_the_head_of_a_prefix_outlives_its_tail(policy: str) -> None:
    rig = Rig(6, "disk", policy=policy)
    chain = keys(1, 2, 3, 4, 5, 6)
    rig.write(rig.prepare(R1, chain))
    for number in (4, 1, 6, 2, 5, 3):
        rig.manager.complete_store(keys(number))
        rig.step()
    rig.end_jobs()
    rig.finish(R1)
    assert eviction_order(rig, 6) == keys(6, 5, 4, 3, 2, 1)
    rig.finish(*[ReqContext(f"taker {number}") for number in range(500, 506)])
    rig.check()


def test_tc_22_a_shared_head_outlives_both_tails(policy: str) -> None:
    rig = Rig(9, "disk", policy=policy)
    for request, chain in ((R1, keys(1, 2, 3, 11, 12, 13)), (R2, keys(1, 2, 3, 21, 22, 23))):
        rig.load(request, *chain[: rig.manager.lookup_prefix(chain, request).num_ready])
        rig.store(request, *chain)
        rig.end_jobs()
        rig.finish(request)
    order = eviction_order(rig, 9)
    assert order[:6] == keys(13, 12, 11, 23, 22, 21)
    assert order[6:] == (keys(3, 2, 1) if policy == "lru" else keys(500, 501, 502)), "what is used again stays with ARC"
    rig.finish(*[ReqContext(f"taker {number}") for number in range(500, 509)])
    rig.check()


def test_tc_22_a_pinned_chunk_is_passed_over_and_keeps_its_place(policy: str) -> None:
    rig = Rig(6, "disk", policy=policy)
    rig.fill(*keys(1, 2, 3, 4, 5, 6))
    rig.statuses(R2, key(5))
    rig.tier.answers[key(99)] = None
    rig.statuses(R2, key(99))  # so that it waits, and its ready row is held
    rig.step()
    assert eviction_order(rig, 2) == keys(6, 4)
    rig.finish(R2)
    assert eviction_order(rig, 4, 600) == keys(5, 3, 2, 1)
    rig.finish(*[ReqContext(f"taker {number}") for number in (500, 501, 600, 601, 602, 603)])
    rig.check()


def test_a_store_evicts_none_of_its_own_chunks(policy: str) -> None:
    rig = Rig(3, "disk", policy=policy)
    rig.fill(*keys(1, 2, 3))
    store = rig.store(R1, *keys(3, 11))
    assert store.evicted_keys == keys(2), "3 would have been the first to go"
    assert store.keys_to_store == keys(11)
    rig.end_jobs()
    rig.finish(R1)
    rig.check()


def test_a_load_makes_its_chunks_recent_at_once(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy)
    rig.fill(*keys(1, 2, 3, 4))
    rig.load(R1, *keys(3, 4))
    rig.step()
    assert rig.store(R2, key(11)).evicted_keys == keys(2)
    rig.end_jobs()
    rig.finish(R1, R2)
    rig.check()


def test_a_request_that_loads_what_it_has_stored_has_used_it_once() -> None:
    manager = CPUOffloadingManager(4, "arc")
    arc = manager.rows.policy.policy
    assert isinstance(arc, ARCCachePolicy)
    assert manager.prepare_store(keys(1, 2), R1) is not None
    manager.complete_store(keys(1, 2))
    manager.prepare_load(keys(1, 2), R1)  # preempted and resumed
    manager.complete_load(keys(1, 2))
    manager.on_request_finished(R1)
    assert (len(arc._t1), len(arc._t2)) == (2, 0)
    for request in (R2, R3):
        manager.prepare_load(keys(1), request)
        manager.complete_load(keys(1))
        manager.on_request_finished(request)
        assert (len(arc._t1), len(arc._t2)) == (1, 1), "another request uses it: that is a second use"
    manager.on_schedule_end()
    check_quiescent(manager, 4)


def test_tc_26_no_room_is_said_at_once(policy: str) -> None:
    rig = Rig(4, "slow", policy=policy, promotion_limit=1.0)
    rig.store(R1, *keys(1, 2, 3, 4))
    rig.step()
    rig.tier.objects = {key(9)}
    before = rig.manager.get_stats()
    assert rig.statuses(R2, key(9)) == [ABSENT]
    assert rig.manager.prepare_store(keys(5), R2) is None
    assert rig.manager.prepare_store(keys(5, 6, 7, 8, 9), R2) is None
    after = rig.manager.get_stats()
    assert after["promotions_refused"] - before["promotions_refused"] == 1
    assert after["stores_refused"] - before["stores_refused"] == 2
    assert (after["chunks"], after["rows_free"]) == (4, 0)
    rig.tier.finish_all()
    rig.step()
    assert rig.statuses(R2, key(9)) == [PENDING]
    rig.store(R2, key(5))
    assert rig.manager.prepare_store(keys(10, 11, 12, 13, 14), R2) is None, "never, with four rows"
    rig.wait(R2, keys(9))
    rig.load(R2, key(9))
    rig.end_jobs()
    rig.finish(R1, R2)
    rig.check()


def test_promotions_never_starve_stores(policy: str) -> None:
    rig = Rig(8, "slow", policy=policy, promotion_limit=0.5)
    rig.tier.objects = set(keys(*range(100, 120)))
    rig.statuses(R1, *keys(*range(100, 120)))
    assert rig.manager.get_stats()["rows_promoting"] == 4
    rig.step()
    assert rig.manager.prepare_store(keys(1, 2, 3, 4), R2) is not None
    rig.manager.complete_store(keys(1, 2, 3, 4), success=False)
    rig.wait(R1, keys(*range(100, 120)))
    rig.finish(R1, R2)
    rig.check()


def lines_run(function: Callable[[], Any]) -> int:
    """Count the lines of Python that a call executes: its cost, without a clock."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def costs_with(policy: str, num_rows: int, num_pinned: int) -> dict[str, int]:
    manager = CPUOffloadingManager(num_rows, policy)
    everything = keys(*range(num_rows))
    manager.prepare_store(everything, R1)
    manager.complete_store(everything)
    manager.on_request_finished(R1)
    manager.on_schedule_end()
    # What cannot be evicted is the least recent: every search for a victim begins with it.
    manager.prepare_load(everything[num_rows - num_pinned :], R2)
    manager.on_request_finished(R2)
    manager.touch(everything[: num_rows - num_pinned])
    manager.prepare_store(keys(10**5), R1)  # the first search pays for what is pinned, once
    manager.complete_store(keys(10**5))
    manager.on_schedule_end()
    return {
        "replace": lines_run(lambda: manager.prepare_store(keys(*range(10**6, 10**6 + 500)), R3)),
        "touch": lines_run(lambda: manager.touch(everything[:500])),
        "hit": lines_run(lambda: manager.lookup_prefix(everything[:500], R3)),
        "miss": lines_run(lambda: [manager.lookup(one, R3) for one in keys(*range(10**7, 10**7 + 500))]),
        "end of step": lines_run(manager.on_schedule_end),
    }


@pytest.mark.parametrize("num_pinned", [0, 400])
def test_tc_57_cost_per_key_does_not_grow_with_the_number_of_rows(policy: str, num_pinned: int) -> None:
    few, many = (costs_with(policy, num_rows, num_pinned) for num_rows in (2_000, 20_000))
    for name in few:
        assert many[name] <= few[name] * 1.01 + 5, f"{name}: {few[name]} lines of code with few rows, {many[name]} now"


def test_tc_57_cost_per_key_does_not_grow_with_the_number_of_pinned_rows(policy: str) -> None:
    none, many = (costs_with(policy, 4_000, num_pinned) for num_pinned in (0, 3_000))
    assert many["replace"] <= none["replace"] * 1.01 + 5


def test_tc_57_a_repeated_lookup_and_an_idle_step_cost_next_to_nothing() -> None:
    rig = Rig(4096, "disk", promotion_limit=1.0)
    wanted = keys(*range(1000))
    rig.tier.objects = set(wanted)
    rig.manager.lookup_prefix(wanted, R1)
    rig.step()
    waiting = lines_run(lambda: rig.manager.lookup_prefix(wanted, R1))
    assert waiting < 20 * len(wanted)
    assert len(rig.tier.calls_of("lookup")) == 1000, "no tier is asked twice"
    rig.wait(R1, wanted)
    ready = lines_run(lambda: rig.manager.lookup_prefix(wanted, R1))
    assert ready < 7 * len(wanted)
    rig.load(R1, *wanted)
    rig.finish(R1)
    rig.step(2)
    assert lines_run(rig.manager.on_schedule_end) < 60
    rig.check()


@pytest.mark.slow
def test_tc_57_a_hundred_thousand_rows_turn_over_in_seconds(policy: str) -> None:
    manager = CPUOffloadingManager(100_000, policy)
    begin = time.monotonic()
    manager.prepare_store(keys(*range(100_000)), R1)
    manager.complete_store(keys(*range(100_000)))
    manager.on_schedule_end()
    granted = manager.prepare_store(keys(*range(200_000, 250_000)), R1)
    assert granted is not None
    assert len(granted.evicted_keys) == 50_000
    manager.complete_store(granted.keys_to_store)
    for _ in range(10):
        manager.touch(keys(*range(100_000)))
    manager.on_schedule_end()
    assert time.monotonic() - begin < 60, "quadratic, not linear"
    manager.on_request_finished(R1)
    check_quiescent(manager, 100_000)
