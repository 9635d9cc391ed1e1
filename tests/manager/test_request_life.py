"""Requests that end early, late, twice or never, and resets in between."""

from __future__ import annotations

import itertools

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, R4, READY, ROW_BYTES, Rig, key, keys, worker_of

from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult
from tiering.testing import PlainRows, check_quiescent, drain


def test_tc_09_a_request_dropped_between_lookup_and_load_leaves_nothing(policy: str) -> None:
    rig = Rig(64, "disk", policy=policy)
    rig.tier.objects = set(keys(*range(200, 300)))
    rig.fill(*keys(*range(20)))
    for number in range(3000):
        request = ReqContext(f"request {number}")
        wanted = keys(number % 20, 1 + number % 20, 200 + number % 100, 201 + number % 97, *range(1000, 1004))
        rig.tier.answers = dict.fromkeys(keys(1002)) if number % 3 == 0 else {}
        rig.statuses(request, *wanted)
        rig.step()
        rig.tier.finish_all(succeeded=number % 5 > 0)
        rig.finish(request)
        rig.tier.calls.clear()
    rig.end_jobs()
    rig.check()


def test_tc_17_steps_alone_finish_what_was_begun() -> None:
    rig = Rig(8, "disk")
    rig.tier.objects = {key(1)}
    assert not rig.manager.has_pending_work()
    rig.statuses(R1, key(1))
    assert rig.manager.has_pending_work(), "a queued promotion"
    rig.step()
    rig.finish(R1)
    rig.store(R2, key(2))
    rig.finish(R2)
    for _ in range(2):
        rig.step()
        assert rig.manager.has_pending_work()
    rig.tier.finish_all()
    assert drain(rig.manager) == 1
    assert not rig.manager.has_pending_work()
    assert rig.statuses(R3, *keys(1, 2)) == [READY, READY]
    rig.finish(R3)
    rig.check()


def test_tc_17_on_a_loop() -> None:
    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows) as worker:
        manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, mmap_region=rows), [worker])
        manager.prepare_store(keys(1, 2), R1)
        manager.complete_store(keys(1, 2))
        manager.on_request_finished(R1)
        assert manager.has_pending_work()
        drain(manager)
        assert manager.get_stats()["tiers"]["memory"]["stored_chunks"] == 2
        check_quiescent(manager, 4)


def test_tc_70_a_request_ends_in_the_step_that_queued_its_promotion() -> None:
    rig = Rig(4, "disk")
    rig.tier.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.finish(R1)
    rig.step(2)
    last = max(number for number, call in enumerate(rig.tier.calls) if call.method == "on_request_finished")
    assert not [call for call in rig.tier.calls[last + 1 :] if call.req_id == "r1"]
    assert rig.manager.get_stats()["rows_free"] == 4
    rig.check()


def test_tc_70_somebody_else_waits_for_the_dropped_promotion() -> None:
    rig = Rig(4, "disk")
    rig.tier.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == rig.statuses(R2, key(1)) == [PENDING]
    rig.finish(R1)
    assert rig.wait(R2, keys(1)).num_ready == 1
    rig.load(R2, key(1))
    rig.finish(R2)
    rig.check()


@pytest.mark.parametrize("moments", list(itertools.combinations_with_replacement(range(4), 2)))
def test_tc_71_preempted_in_mid_store_then_resumed(moments: tuple[int, int]) -> None:
    """The two old completions arrive at every pair of moments around the resumed request's calls."""
    rig = Rig(8, "disk")
    wanted = keys(1, 2, 3, 4)
    store = rig.prepare(R1, wanted)
    rig.write(store)
    rig.manager.complete_store(wanted[:2])
    rig.step()
    late = iter(wanted[2:])

    def arrivals(moment: int) -> None:
        for _ in range(moments.count(moment)):
            rig.manager.complete_store([next(late)])

    arrivals(0)
    found = rig.manager.lookup_prefix(wanted, R1)
    assert found.num_ready >= 2
    arrivals(1)
    rig.load(R1, *wanted[: found.num_ready])
    arrivals(2)
    again = rig.prepare(R1, wanted)
    assert again.keys_to_store == [], "at most one pending store per key"
    rig.step()
    arrivals(3)
    assert rig.statuses(R1, *wanted) == [READY] * 4
    rig.load(R1, *wanted)
    rig.finish(R1)
    rig.end_jobs()
    assert rig.tier.objects == set(wanted)
    rig.check()


def test_tc_73_reset_with_everything_in_flight(policy: str) -> None:
    rig = Rig(12, "disk", policy=policy, promotion_limit=1.0)
    rig.tier.objects = set(keys(21, 31))
    rig.fill(*keys(11))
    load = rig.manager.prepare_load(keys(11), R1)
    old_store = rig.prepare(R1, keys(12, 13))
    rig.statuses(R2, key(21))
    rig.store(R4, key(41))
    rig.step()
    rig.finish(R4)
    rig.statuses(R3, key(31))
    promotion, cascade = (next(j for j in rig.tier.jobs if j.keys == (wanted,)) for wanted in (key(21), key(41)))
    in_flight = {*load.block_ids.tolist(), *old_store.store_spec.block_ids.tolist(), *promotion.rows, *cascade.rows}
    assert len(in_flight) == 5

    rig.manager.reset_cache()
    assert rig.manager.get_stats()["chunks"] == 0
    rig.tier.answers = dict.fromkeys(keys(11, 21, 31, 41), False)
    assert rig.statuses(ReqContext("new"), *keys(11, 12, 13, 21, 31, 41)) == [ABSENT] * 6
    rig.finish(ReqContext("new"))
    rig.tier.answers = {}
    rig.step()

    new_stores = [rig.store(request, *wanted) for request, wanted in ((R1, keys(11, 14)), (R2, keys(51)))]
    granted = {row for store in new_stores for row in store.store_spec.block_ids.tolist()}
    assert not granted & in_flight, "a row with an old copy under way was given out"
    rig.load(R1, *keys(14))
    rig.write(old_store)  # the worker finishes what it had begun
    rig.manager.complete_load(keys(11))
    rig.manager.complete_store(keys(12, 13))
    for request, wanted in ((R2, keys(21)), (R3, keys(31)), (R1, keys(11, 14))):
        assert rig.wait(request, wanted).num_ready == len(wanted)
        rig.load(request, *wanted)
    assert rig.statuses(R2, *keys(12, 13, 51)) == [ABSENT, ABSENT, READY], (
        "a store that began before the reset is forgotten"
    )
    rig.finish(R1, R2, R3)
    rig.end_jobs()
    assert rig.manager.get_stats()["completions_unexpected"] == 0
    assert {key(41), key(21), key(31)} <= rig.tier.objects, "content of lower tiers stays"
    rig.check()


def test_completions_of_one_key_before_and_after_a_reset_end_in_order() -> None:
    rig = Rig(3, "disk")
    stores = []
    for _ in range(3):
        rig.manager.reset_cache()
        stores.append(rig.prepare(R1, keys(1)))
    rows = [int(store.store_spec.block_ids[0]) for store in stores]
    assert sorted(rows) == [0, 1, 2]
    for store, status in zip(stores, (PENDING, PENDING, READY), strict=True):
        rig.write(store)
        rig.manager.complete_store(keys(1))
        assert rig.statuses(R1, key(1)) == [status]
        if status is PENDING:
            freed = rig.prepare(R2, keys(7)).store_spec.block_ids.tolist()
            assert freed == [store.store_spec.block_ids[0]], "the row of the store that has ended, and no other"
            rig.manager.complete_store(keys(7), success=False)
    assert rig.load(R1, key(1)) == [rows[2]]
    rig.finish(R1, R2)
    rig.end_jobs()
    rig.check()


def test_tc_75_a_request_ends_before_its_stores_complete() -> None:
    rig = Rig(6, "a", "b")
    store = rig.prepare(R1, keys(1, 2, 3))
    rig.write(store)
    rig.finish(R1)
    rig.step(2)
    for number, success in ((1, True), (2, False), (3, True)):
        rig.manager.complete_store(keys(number), success)
    rig.end_jobs()
    for tier in rig.tiers:
        assert tier.objects == set(keys(1, 3))
    assert rig.manager.get_stats()["rows_free"] == 4
    rig.finish(R1)
    rig.finish(R1, ReqContext("never seen"), ReqContext())
    rig.check()


def test_tc_75_a_reused_id_inherits_nothing() -> None:
    rig = Rig(8, "disk", promotion_limit=1.0)
    rig.tier.objects = set(keys(11, 12))
    store = rig.prepare(R1, keys(1, 2))
    rig.statuses(R1, *keys(11, 12))
    rig.step()
    rig.finish(R1)
    assert rig.statuses(R1, *keys(1, 11)) == [PENDING, PENDING]
    rig.write(store)
    rig.manager.complete_store(keys(1, 2))
    rig.tier.finish_all()
    rig.step()
    assert rig.manager.get_load_source(key(11), R1) == "cpu", "the earlier life had it promoted"
    rig.finish(R1)
    rig.end_jobs()
    rig.check()


def test_a_completion_that_nobody_owes_is_counted_and_harmless() -> None:
    rig = Rig(4, "disk")
    rig.fill(*keys(1, 2))
    rig.tier.objects.add(key(3))
    rig.statuses(R1, key(3))  # reserved by a promotion, not by a store
    for _ in range(2):
        rig.manager.complete_load(keys(1, 9))
        rig.manager.complete_store(keys(1, 3, 9))
        rig.manager.complete_store(keys(1, 3, 9), success=False)
    assert rig.manager.get_stats()["completions_unexpected"] == 16
    assert rig.statuses(R1, *keys(1, 2, 3)) == [READY, READY, PENDING]
    rig.wait(R1, keys(1, 2, 3))
    rig.load(R1, *keys(1, 2, 3))
    rig.finish(R1)
    rig.check()


def test_a_restriction_on_stores_outlives_a_reset_and_concerns_its_own_store_only() -> None:
    rig = Rig(6, "a", "b")
    only_a = ReqContext("r1", {"kv_store_tiers": ["a"]})
    old = rig.prepare(R2, keys(1))
    rig.manager.reset_cache()
    new = rig.prepare(only_a, keys(1))
    rig.write(old)
    rig.manager.complete_store(keys(1))
    rig.write(new)
    rig.manager.complete_store(keys(1))
    rig.end_jobs()
    assert [tier.objects for tier in rig.tiers] == [{key(1)}, set()]
    rig.finish(only_a, R2)
    rig.check()


def test_a_restriction_does_not_outlive_its_store() -> None:
    rig = Rig(1, "a", "b")
    only_a = ReqContext("r1", {"kv_store_tiers": ["a"]})
    rig.prepare(only_a, keys(1))
    rig.manager.complete_store(keys(1), success=False)
    rig.store(R2, key(1))
    rig.end_jobs()
    rig.step()
    assert [tier.objects for tier in rig.tiers] == [{key(1)}, {key(1)}]
    rig.prepare(only_a, keys(2))
    rig.manager.reset_cache()
    rig.manager.complete_store(keys(2))
    rig.store(R2, key(2))
    rig.end_jobs()
    assert [tier.objects for tier in rig.tiers] == [set(keys(1, 2)), set(keys(1, 2))]
    rig.finish(only_a, R2)
    rig.check()


def test_what_a_request_has_stored_itself_can_be_found_by_it_again() -> None:
    """Its earlier question found nothing; that must not outlive its own store."""
    rig = Rig(2, "disk", promotion_limit=1.0)
    assert rig.statuses(R1, key(1)) == [ABSENT]
    rig.store(R1, key(1))
    rig.end_jobs()
    rig.store(R2, *keys(11, 12))  # evicts it
    rig.end_jobs()
    assert rig.wait(R1, keys(1)).num_ready == 1
    assert rig.manager.get_load_source(key(1), R1) == "disk"
    rig.load(R1, key(1))
    rig.finish(R1, R2)
    rig.check()


def test_tc_69_one_tier_fails_to_shut_down() -> None:
    cleaned = []

    class WatchedRows(PlainRows):
        def cleanup(self) -> None:
            cleaned.append(True)

    for failing in ([], [1], [0, 2]):
        cleaned.clear()
        rig = Rig(2, "a", "b", "c")
        rig.rows.__class__ = WatchedRows
        for number in failing:
            rig.tiers[number].raise_in("shutdown", RuntimeError(f"tier {number}"))
        if failing:
            with pytest.raises(RuntimeError, match=f"tier {failing[0]}"):
                rig.manager.shutdown()
        else:
            rig.manager.shutdown()
        rig.manager.shutdown()
        assert [len(tier.calls_of("shutdown")) for tier in rig.tiers] == [1, 1, 1]
        assert cleaned == ([] if failing else [True]), "the memory is kept if a tier may still use it"


def test_a_job_that_ends_after_its_request_and_a_second_result_for_it() -> None:
    rig = Rig(4, "disk")
    rig.tier.objects = {key(1)}
    rig.statuses(R1, key(1))
    rig.step()
    (job,) = rig.tier.jobs
    rig.finish(R1)
    rig.tier.finish(job)
    rig.tier.report(JobResult(job.job_id, [False]))
    rig.step()
    assert rig.statuses(R2, key(1)) == [READY]
    rig.load(R2, key(1))
    rig.finish(R2)
    rig.check()
