"""Odd input: repeated keys, no keys, several groups, parameters of requests."""

from __future__ import annotations

import random

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, Rig, key, keys

from tiering.offloading_manager import PrefixLookup
from tiering.request import ReqContext


def test_tc_54_the_same_key_twice_in_one_store(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy)
    store = rig.store(R1, key(1), key(1), key(2))
    assert store.keys_to_store == keys(1, 2)
    assert len(set(store.store_spec.block_ids.tolist())) == 2
    rig.manager.complete_store(keys(1, 1, 2))
    rig.end_jobs()
    rig.finish(R1)
    assert rig.manager.get_stats()["rows_free"] == 2
    rig.store(R2, *keys(11, 12, 13, 14))
    rig.end_jobs()
    rig.finish(R2)
    rig.check()


def test_tc_54_two_requests_look_a_key_up_in_one_step(policy: str) -> None:
    rig = Rig(4, "disk", policy=policy, promotion_limit=1.0)
    rig.tier.objects = {key(1)}
    assert rig.statuses(R1, key(1), key(1)) == [PENDING, PENDING]
    assert rig.statuses(R2, key(1)) == [PENDING]
    assert rig.manager.lookup_prefix(keys(1, 1), R2) == PrefixLookup(0, PENDING)
    rig.step()
    assert [job.keys for job in rig.tier.jobs] == [(key(1),)]
    rig.tier.finish()
    for request in (R1, R2):
        assert rig.wait(request, keys(1)).num_ready == 1
        assert len(rig.load(request, key(1), key(1))) == 1
    rig.finish(R1, R2)
    rig.step()
    rig.fill(*keys(11, 12, 13, 14))
    rig.check()


def test_tc_56_empty_calls_have_no_effect() -> None:
    rig = Rig(4, "disk", events=True)
    rig.store(R2, key(1))
    rig.end_jobs()
    rig.finish(R2)
    rig.step()
    rig.manager.take_events()
    calls = len(rig.tier.calls)
    before = rig.manager.get_stats()
    manager = rig.manager
    for _ in range(2):
        store = manager.prepare_store([], R1)
        assert store is not None
        assert (store.keys_to_store, store.store_spec.block_ids.size, store.evicted_keys) == ([], 0, [])
        assert manager.prepare_load([], R1).block_ids.size == 0
        assert manager.lookup_prefix([], R1) == PrefixLookup(0, ABSENT)
        manager.complete_store([])
        manager.complete_store([], success=False)
        manager.complete_load([])
        manager.touch([])
    assert manager.get_stats() == before
    assert rig.tier.calls[calls:] == []
    rig.step()
    assert not rig.tier.jobs
    assert list(manager.take_events()) == []
    assert not manager.has_pending_work()
    rig.store(R1, key(2))
    manager.complete_store([])
    rig.end_jobs()
    assert rig.tier.objects == set(keys(1, 2))
    rig.finish(R1)
    rig.check()


def test_an_empty_load_releases_nothing_that_is_held() -> None:
    rig = Rig(4, "disk")
    rig.fill(*keys(1, 2, 3))
    rig.tier.answers = {key(9): None}
    rig.statuses(R1, *keys(1, 2, 9))
    rig.step()
    assert rig.manager.get_stats()["rows_held"] == 2
    rig.manager.prepare_load([], R1)
    assert rig.manager.get_stats()["rows_held"] == 2
    rig.finish(R1)
    rig.check()


def test_tc_76_a_prefix_hit_holds_for_every_group() -> None:
    """Two full groups and one with a window of two positions; what is missing in one limits them all."""
    for removed_before_lookup in (True, False):
        rig = Rig(32, "disk", promotion_limit=1.0)
        groups = [[key(position, group) for position in range(8)] for group in range(3)]
        everything = [one for group in groups for one in group]
        assert len(set(everything)) == 24, "one hash in two groups is two chunks"
        rows = rig.store(R1, *everything).store_spec.block_ids.tolist()
        assert len(set(rows)) == 24
        rig.end_jobs()
        rig.finish(R1)
        rig.manager.reset_cache()
        rig.step()
        lost = groups[1][5]
        if removed_before_lookup:
            rig.tier.evict(lost)
        for _ in range(20):
            found = [rig.manager.lookup_prefix(group, R2) for group in groups[:2]]
            window = [rig.manager.status(one, R2) for one in groups[2]]
            rig.step()
            while rig.tier.jobs:
                rig.tier.finish(succeeded=[one != lost for one in rig.tier.jobs[0].keys])
            if not (any(prefix.must_wait for prefix in found) or PENDING in window):
                break
        assert [prefix.num_ready for prefix in found] == [8, 5]
        usable = min(prefix.num_ready for prefix in found)
        loaded = [*groups[0][:usable], *groups[1][:usable], *groups[2][usable - 2 : usable]]
        assert rig.statuses(R2, *loaded, lost) == [READY] * 12 + [ABSENT]
        assert len(set(rig.load(R2, *loaded))) == 12
        rig.finish(R2)
        rig.seen.update(dict.fromkeys(everything))
        rig.check()


def test_tc_32_a_declined_store_is_granted_when_there_is_room() -> None:
    rig = Rig(12, "slow")
    other = rig.store(R2, *[key(number, 7) for number in range(6)])
    assert other.keys_to_store
    chunks = [key(position, group) for position in range(6) for group in range(2)]
    assert rig.manager.prepare_store(chunks, R1) is None, "declined as a whole: no key may count as stored"
    assert [rig.manager.lookup(one, R1) for one in chunks] == [False] * 12
    rig.end_jobs()
    assert rig.store(R1, *chunks).keys_to_store == chunks
    assert rig.store(R1, *chunks).keys_to_store == [], "nothing new"
    new = key(6, 0)
    rig.step()
    rig.end_jobs()
    assert rig.store(R1, new, *[key(position, 1) for position in range(6)]).keys_to_store == [new]
    rig.end_jobs()
    assert rig.tier.objects >= {new, *chunks}
    rig.finish(R1, R2)
    assert rig.wait(R3, [key(position, 1) for position in range(6)]).num_ready == 6
    rig.load(R3, *[key(position, 1) for position in range(6)])
    rig.finish(R3)
    rig.check()


@pytest.mark.parametrize(
    ("names", "asked"),
    [
        (None, ["a", "b"]),
        (["b"], ["b"]),
        ("a", ["a"]),
        (["scripted"], ["a", "b"]),
        (["a", "b", "unheard of"], ["a", "b"]),
        ([], []),
        (["unheard of"], []),
        ({"a": 1}, []),
        (7, []),
    ],
)
def test_kv_load_tiers_and_kv_store_tiers(names: object, asked: list[str]) -> None:
    rig = Rig(8, "a", "b")
    for tier in rig.tiers:
        tier.answers = {key(1): False}
    request = ReqContext("r1", {"kv_load_tiers": names})
    assert rig.statuses(request, key(1)) == [ABSENT]
    assert [tier.name for tier in rig.tiers if tier.calls_of("lookup")] == asked
    request = ReqContext("r2", {"kv_store_tiers": names})
    rig.store(request, *keys(2, 3))
    rig.store(ReqContext("r3"), *keys(4))
    assert [tier.name for tier in rig.tiers if any(key(2) in job.keys for job in tier.jobs)] == asked
    assert [tier.name for tier in rig.tiers if any(key(4) in job.keys for job in tier.jobs)] == ["a", "b"]
    rig.end_jobs()
    rig.finish(R1, R2, R3)
    rig.check()


def test_a_chunk_is_found_again_by_a_request_that_may_not_read_the_first_tier() -> None:
    rig = Rig(8, "a", "b")
    for tier in rig.tiers:
        tier.objects = {key(1)}
    only_b = ReqContext("r1", {"kv_load_tiers": ["b"]})
    rig.wait(only_b, keys(1))
    assert rig.manager.get_load_source(key(1), only_b) == "b"
    assert not rig.tiers[0].calls_of("lookup")
    rig.load(only_b, key(1))
    rig.finish(only_b)
    rig.check()


@pytest.mark.parametrize("seed", range(30))
def test_lookup_prefix_equals_the_loop_of_status(policy: str, seed: int) -> None:
    """Two managers in the same random state, one asked at once, the other key by key."""
    rigs = [random_rig(policy, seed) for _ in range(2)]
    choose = random.Random(seed)
    for _ in range(6):
        wanted = keys(*[choose.randrange(16) for _ in range(choose.randrange(1, 12))])
        request = choose.choice([R1, R2, ReqContext()])
        found = rigs[0].manager.lookup_prefix(wanted, request)
        statuses = []
        for one in wanted:
            statuses.append(rigs[1].manager.status(one, request))
            if statuses[-1] is ABSENT:
                break
        num_ready = next((n for n, status in enumerate(statuses) if status is not READY), len(statuses))
        following = statuses[num_ready] if num_ready < len(statuses) else ABSENT
        assert found == PrefixLookup(num_ready, following)
        assert rigs[0].manager.get_stats() == rigs[1].manager.get_stats()
        flags = [choose.random() < 0.7 for _ in range(20)]
        for rig in rigs:
            rig.step()
            for tier in rig.tiers:
                while tier.jobs:
                    tier.finish(succeeded=flags[: len(tier.jobs[0].keys)])
        assert rigs[0].tier.calls == rigs[1].tier.calls
    for rig in rigs:
        rig.manager.complete_load(rig.loading)
        rig.manager.complete_store(rig.storing)
        rig.end_jobs()
        rig.finish(R1, R2, R3, ReqContext("r4"))
        rig.step()
        rig.check()


class RandomRig(Rig):
    loading: list[bytes]
    storing: list[bytes]


def random_rig(policy: str, seed: int) -> RandomRig:
    choose = random.Random(seed)
    rig = RandomRig(8, "a", "b", policy=policy, promotion_limit=1.0)
    rig.fill(*keys(*choose.sample(range(8), 5)))
    for tier in rig.tiers:
        tier.objects = set(keys(*choose.sample(range(16), 8)))
        tier.answers = dict.fromkeys(keys(*choose.sample(range(16), 2)))
    rig.storing = keys(*choose.sample(range(8, 16), 2))
    rig.write(rig.prepare(R3, rig.storing))
    rig.loading = [one for one in keys(*range(8)) if rig.manager.status(one, R3) is READY][:2]
    rig.manager.prepare_load(rig.loading, R3)
    rig.step()
    for tier in rig.tiers:
        tier.finish_all()
    return rig
