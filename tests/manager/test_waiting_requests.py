"""Requests that wait for promotions: what they hold, for how long, and that all of them end."""

from __future__ import annotations

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, UNKNOWN, Rig, key, keys

from tiering.request import ReqContext


def test_a_prefix_longer_than_the_primary_is_promoted_as_far_as_it_fits(policy: str) -> None:
    """Four chunks, three rows: a hit of three, after at most four loads, and no endless re-reading."""
    for promotion_limit in (0.5, 1.0):
        rig = Rig(3, "disk", policy=policy, promotion_limit=promotion_limit)
        wanted = keys(1, 2, 3, 4)
        rig.tier.objects = set(wanted)
        assert rig.wait(R1, wanted).num_ready == 3
        assert sum(len(call.keys) for call in rig.tier.calls_of("submit_load")) <= 4
        rig.load(R1, *wanted[:3])
        rig.finish(R1)
        rig.check()


@pytest.mark.parametrize("hold_limit", [0.0, 0.5, 1.0])
def test_requests_that_want_more_rows_than_there_are_all_end(policy: str, hold_limit: float) -> None:
    rig = Rig(6, "disk", policy=policy, promotion_limit=1.0, hold_limit=hold_limit)
    requests = [ReqContext(f"request {number}") for number in range(4)]
    wanted = {r: keys(*range(10 * number, 10 * number + 5)) for number, r in enumerate(requests)}
    rig.tier.objects = {one for chain in wanted.values() for one in chain}
    waiting = dict(wanted)
    for _ in range(40):
        for request, chain in list(waiting.items()):
            found = rig.manager.lookup_prefix(chain, request)
            if not found.must_wait:
                rig.load(request, *chain[: found.num_ready])
                rig.finish(request)
                del waiting[request]
        rig.step()
        rig.tier.finish_all()
        if not waiting:
            break
    assert not waiting
    rig.seen.update(dict.fromkeys(rig.tier.objects))
    rig.check()


def test_ready_rows_of_a_waiting_request_are_held(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy, promotion_limit=1.0)
    rig.fill(*keys(1, 2))
    rig.tier.answers = {key(9): None}
    assert rig.statuses(R1, *keys(1, 2, 9)) == [READY, READY, UNKNOWN]
    rig.step(5)
    store = rig.store(R2, *keys(11, 12))
    assert store.evicted_keys == []
    rig.end_jobs()
    assert rig.manager.prepare_store(keys(21, 22, 23), R2) is None
    rig.tier.answers = {key(9): False}
    assert rig.statuses(R1, *keys(1, 2, 9)) == [READY, READY, ABSENT]
    rig.load(R1, *keys(1, 2))
    assert rig.manager.get_stats()["rows_held"] == 0
    rig.finish(R1, R2)
    rig.check()


def test_promoted_rows_are_held_until_the_request_comes(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy, promotion_limit=1.0)
    rig.tier.objects = set(keys(1, 2))
    assert rig.statuses(R1, *keys(1, 2)) == [PENDING, PENDING]
    rig.step()
    rig.tier.finish_all()
    rig.step()
    rig.store(R2, *keys(11, 12))
    rig.end_jobs()
    assert rig.manager.prepare_store(keys(21, 22, 23), R2) is None, "two rows are held, and two leased"
    rig.step()
    assert rig.store(R2, *keys(21, 22)).evicted_keys
    assert rig.statuses(R1, *keys(1, 2)) == [READY, READY]
    rig.load(R1, *keys(1, 2))
    rig.end_jobs()
    rig.finish(R1, R2)
    rig.check()


def test_a_hold_ends_when_its_request_does_not_come_back(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy, hold_seconds=30.0)
    rig.fill(*keys(1, 2))
    rig.tier.answers = {key(9): None}
    for moment, held in ((0.0, 2), (20.0, 2), (40.0, 2), (69.9, 2), (70.0, 0)):
        rig.now = moment
        if moment <= 40.0:  # coming back prolongs the hold
            rig.statuses(R1, *keys(1, 2, 9))
        rig.step()
        assert rig.manager.get_stats()["rows_held"] == held, f"at {moment} s"
    assert rig.store(R2, *keys(11, 12, 13, 14)).evicted_keys
    rig.end_jobs()
    assert rig.statuses(R1, *keys(1, 2)) == [ABSENT, ABSENT] or rig.tier.objects, "it may ask again"
    rig.finish(R1, R2)
    rig.check()


def test_holds_of_many_requests_stay_within_the_limit(policy: str) -> None:
    rig = Rig(16, "disk", policy=policy, hold_limit=0.5)
    rig.fill(*keys(*range(16)))
    rig.tier.answers = {key(99): None}
    for number in range(4):
        rig.statuses(ReqContext(f"request {number}"), *keys(*range(4 * number, 4 * number + 4), 99))
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 8
    answers = [rig.statuses(ReqContext(f"request {number}"), key(99))[0] for number in range(4)]
    assert answers == [UNKNOWN, UNKNOWN, ABSENT, ABSENT], "those who could not hold their rows wait no longer"
    assert rig.manager.prepare_store(keys(*range(100, 109)), R3) is None
    rig.store(R3, *keys(*range(100, 108)))
    rig.end_jobs()
    rig.finish(R3, *[ReqContext(f"request {number}") for number in range(4)])
    rig.check()


def test_a_single_waiting_request_may_hold_more_than_the_limit() -> None:
    rig = Rig(8, "disk", hold_limit=0.25)
    rig.fill(*keys(*range(6)))
    rig.tier.answers = {key(99): None}
    rig.statuses(R1, *keys(*range(6), 99))
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 6
    assert rig.statuses(R1, key(99)) == [UNKNOWN]
    rig.finish(R1)
    assert rig.manager.get_stats()["rows_held"] == 0
    rig.check()


def test_one_row_wanted_by_two_requests_is_held_for_both() -> None:
    rig = Rig(4, "disk")
    rig.fill(key(1))
    rig.tier.answers = {key(9): None}
    for request in (R1, R2):
        rig.statuses(request, *keys(1, 9))
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 2
    assert rig.primary.rows.num_busy() == 1
    rig.finish(R1)
    assert rig.manager.prepare_store(keys(11, 12, 13, 14), R3) is None
    rig.load(R2, key(1))
    rig.step()
    assert rig.manager.prepare_store(keys(11, 12, 13, 14), R3) is not None
    rig.manager.complete_store(keys(11, 12, 13, 14), success=False)
    rig.finish(R2, R3)
    rig.check()


def test_a_request_that_loads_without_waiting_holds_nothing() -> None:
    rig = Rig(4, "disk")
    rig.fill(*keys(1, 2))
    assert rig.statuses(R1, *keys(1, 2)) == [READY, READY]
    rig.load(R1, *keys(1, 2))
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 0
    rig.finish(R1)
    rig.check()


def test_an_answer_that_never_comes_does_not_keep_others_waiting() -> None:
    rig = Rig(4, "silent", "good")
    silent, good = rig.tiers
    silent.answers = {key(1): None}
    good.objects = set(keys(1, 2))
    for _ in range(5):
        assert rig.statuses(R1, *keys(1, 2)) in ([UNKNOWN, PENDING], [UNKNOWN, READY])
        rig.step()
        good.finish_all()
    rig.finish(R1)
    rig.check()


def test_a_request_that_begins_a_new_life_within_the_step_is_held_for_like_any_other() -> None:
    rig = Rig(4, "disk")
    rig.tier.objects = {key(1)}
    rig.statuses(R1, key(1))
    rig.finish(R1)
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    rig.tier.finish()
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 1
    rig.load(R1, key(1))
    rig.finish(R1)
    rig.check()
