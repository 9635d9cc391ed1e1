"""KV events: whoever replays them knows the true content of every tier, at any time."""

from __future__ import annotations

import random

import pytest
from manager_rig import R1, R2, READY, Rig, key, keys

from tiering.events import EventLog, OffloadingEvent
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.request import ReqContext


class Consumer:
    """Knows nothing but events."""

    def __init__(self) -> None:
        self.content: dict[tuple[str, str], set[OffloadKey]] = {}

    def take(self, manager: TieringOffloadingManager) -> None:
        for event in manager.take_events():
            held = self.content.setdefault((event.tier, event.medium), set())
            assert len(set(event.keys)) == len(event.keys) > 0
            if event.removed:
                assert held.issuperset(event.keys), "removed, but never stored"
                held.difference_update(event.keys)
            else:
                assert held.isdisjoint(event.keys), "stored twice in a row"
                held.update(event.keys)


def readable(rig: Rig) -> set[OffloadKey]:
    index, ref_cnt = rig.primary.rows.index, rig.primary.rows.table.ref_cnt
    return {one for one, row in index.items() if ref_cnt[row] >= 0}


@pytest.mark.parametrize("seed", range(2))
def test_tc_80_events_replay_to_the_true_content(policy: str, seed: int) -> None:
    choose = random.Random(seed)
    rig = Rig(12, "a", "b", policy=policy, events=True, promotion_limit=1.0)
    requests = [ReqContext(f"request {number}") for number in range(4)]
    consumer = Consumer()
    stores: list[OffloadKey] = []
    loads: list[tuple[ReqContext, list[OffloadKey]]] = []

    def some_keys(most: int) -> list[OffloadKey]:
        return keys(*[choose.randrange(40) for _ in range(choose.randint(1, most))])

    for _ in range(5_000 if policy == "lru" else 2_000):
        request = choose.choice(requests)
        match choose.randrange(12):
            case 0 | 1:
                store = rig.manager.prepare_store(some_keys(4), request)
                if store is not None:
                    rig.write(store)
                    stores += store.keys_to_store
            case 2 | 3:
                choose.shuffle(stores)
                ended, stores[:2] = stores[:2], []
                rig.manager.complete_store(ended, success=choose.random() < 0.7)
            case 4 | 5:
                found = rig.manager.lookup_prefix(wanted := some_keys(6), request)
                if found.num_ready and not found.must_wait:
                    rig.manager.prepare_load(wanted[: found.num_ready], request)
                    loads.append((request, wanted[: found.num_ready]))
            case 6:
                if loads:
                    rig.manager.complete_load(loads.pop(choose.randrange(len(loads)))[1])
            case 7 | 8:
                busy = [tier for tier in rig.tiers if tier.jobs]
                if busy:
                    tier = choose.choice(busy)
                    job = choose.choice(tier.jobs)
                    tier.finish(job, [choose.random() < 0.7 for _ in job.keys])
            case 9:
                choose.choice(rig.tiers).evict(*some_keys(3))
            case 10:
                rig.finish(request)
            case 11:
                if choose.random() < 0.1 and not loads and not stores:
                    rig.manager.reset_cache()
        if choose.random() < 0.5:
            rig.step()
        consumer.take(rig.manager)
        assert consumer.content.get(("cpu", "CPU"), set()) == readable(rig)
        for tier in rig.tiers:
            known = consumer.content.get((tier.name, "STORAGE"), set())
            assert known == tier.objects
    assert list(rig.manager.take_events()) == []
    rig.manager.complete_store(stores)
    for _, loaded in loads:
        rig.manager.complete_load(loaded)
    rig.end_jobs()
    rig.finish(*requests)
    rig.seen.update(dict.fromkeys(keys(*range(40))))
    rig.check()


def test_nothing_is_announced_before_it_can_be_read() -> None:
    rig = Rig(4, "disk", events=True)
    rig.tier.objects = {key(9)}
    rig.write(rig.prepare(R1, keys(1)))
    rig.statuses(R2, key(9))
    rig.step()
    assert list(rig.manager.take_events()) == []
    rig.manager.complete_store(keys(1))
    rig.tier.finish_all()
    assert rig.statuses(R2, key(1)) == [READY]
    assert OffloadingEvent((key(1),), "CPU", removed=False) in rig.manager.take_events()
    rig.wait(R2, keys(9))
    rig.load(R2, key(9))
    rig.finish(R1, R2)
    rig.end_jobs()
    rig.check()


def test_no_events_are_kept_for_nobody() -> None:
    rig = Rig(4, "disk")
    rig.fill(*keys(1, 2))
    assert list(rig.manager.take_events()) == []
    rig.check()


def test_undrained_events_are_folded_into_their_effect() -> None:
    log = EventLog("CPU", "cpu", limit=10)
    log.stored(keys(1, 2))
    assert len(log.take()) == 1
    for _ in range(1_000):
        log.stored(keys(3, 4, 5))
        log.removed(keys(1, 3))
        log.removed(keys(4))
        log.stored(keys(1))
    assert log._num_keys <= 10
    consumer = set(keys(1, 2))
    for event in log.take():
        consumer = consumer - set(event.keys) if event.removed else consumer | set(event.keys)
    assert consumer == set(keys(1, 2, 5))
    assert list(log.take()) == []
