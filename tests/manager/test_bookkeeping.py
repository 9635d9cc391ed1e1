"""What is remembered does not grow with the number of requests served."""

from __future__ import annotations

import random

from manager_rig import Rig, key, keys

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.policies.arc import ARCCachePolicy
from tiering.policies.lru import LRUCachePolicy
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.reuse_filter import FilterReusedOffloadingManager
from tiering.secondary_tier import SecondaryTierManager
from tiering.testing import MemoryTier, MemoryTierConfig, ScriptedTier, container_sizes, drain


def test_tc_91_book_keeping_does_not_grow(policy: str) -> None:
    """Aborts, failed loads and failed stores included; events are drained rarely."""
    choose = random.Random(7)
    rig = Rig(32, "a", "b", policy=policy, events=True, promotion_limit=1.0)
    for tier in rig.tiers:
        tier.finishes_itself = True
    measured = []
    num_requests = 20_000 if policy == "lru" else 6_000
    for number in range(num_requests):
        serve(rig, ReqContext(f"request {number}"), choose)
        for tier in rig.tiers:
            tier.calls.clear()
            tier.stored_bytes.clear()
            if len(tier.objects) > 200:
                tier.evict(*list(tier.objects)[:50])
        if number % 500 == 0:
            rig.manager.take_events()
        if number in (num_requests // 2, num_requests - 1):
            rig.end_jobs()
            rig.manager.take_events()
            rig.step(2)
            measured.append(container_sizes(rig.manager))
    half, whole = measured
    assert len(half) > 30, "the walk must have found the containers"
    # Contents, ghosts and rows put aside vary within what the rows and the tiers hold.
    allowed = {path: max(size, 2 * 200) for path, size in half.items()}
    grown = {path: (half.get(path), size) for path, size in whole.items() if size > allowed.get(path, 2 * 200)}
    assert not grown
    per_request = {path: size for path, size in whole.items() if path.endswith(("_requests", "_chunks", "_queued"))}
    assert set(per_request.values()) == {0}
    assert rig.manager.get_stats()["tiers"]["a"]["loaded_chunks"] > 100, "promotions are still accepted"
    rig.check()


def serve(rig: Rig, request: ReqContext, choose: random.Random) -> None:
    start = choose.randrange(400)
    wanted: list[OffloadKey] = keys(*range(start, start + choose.randint(1, 6)))
    for _ in range(3):
        found = rig.manager.lookup_prefix(wanted, request)
        if not found.must_wait or choose.random() < 0.05:
            break
        if choose.random() < 0.05:
            failing = choose.choice(rig.tiers)
            failing.raise_in("submit_load", OSError("read error"))
        rig.step()
    if choose.random() > 0.05:  # the others are aborted
        rig.manager.prepare_load(wanted[: found.num_ready], request)
        store = rig.manager.prepare_store(wanted, request)
        rig.manager.complete_load(wanted[: found.num_ready])
        if store is not None:
            rig.manager.complete_store(store.keys_to_store, success=choose.random() > 0.05)
    rig.finish(request)
    rig.step()


def test_tc_91_the_tracker_and_the_questions_do_not_grow() -> None:
    tracked = FilterReusedOffloadingManager(CPUOffloadingManager(16), max_tracker_size=64)
    for number in range(5_000):
        request = ReqContext(f"request {number}")
        tracked.lookup_prefix(keys(number, number + 1), request)
        store = tracked.prepare_store(keys(number, number + 1), request)
        assert store is not None
        tracked.complete_store(store.keys_to_store)
        tracked.on_request_finished(request)
        tracked.on_schedule_end()
    assert tracked.num_tracked == 64
    assert tracked.get_stats()["requests"] == 0

    class AsksEachTime(MemoryTier):
        contains = None  # type: ignore[assignment]

    worker: SecondaryTierManager = TierWorker(
        lambda context: AsksEachTime(MemoryTierConfig(), context),
        JobLoop(),
        lambda rows: [memoryview(b"")] * len(rows),
        name="memory",
        row_bytes=0,
        namespace=Namespace("model", row_bytes=0),
    )
    manager = TieringOffloadingManager(CPUOffloadingManager(16), [worker])
    for number in range(1_000):
        request = ReqContext(f"request {number}")
        manager.lookup_prefix(keys(number, number + 1), request)
        manager.on_schedule_end()
        if number % 3:
            manager.lookup_prefix(keys(number, number + 1), request)
        manager.on_request_finished(request)
    drain(manager)
    manager.shutdown()  # after it all answers are there, also those that nobody waits for
    manager.on_schedule_end()
    questions = worker._questions  # type: ignore[attr-defined]
    names = ("_unasked", "_waiting", "_abandoned", "_answers", "_batch_of", "_num_asked")
    assert {name: getattr(questions, name) for name in names if getattr(questions, name)} == {}


def test_recency_lists_do_not_grow_while_rows_are_pinned_and_touched() -> None:
    """Each round puts pinned rows aside, lets them back, and uses them before any search has seen them again."""
    for policy in (LRUCachePolicy, ARCCachePolicy):
        manager = CPUOffloadingManager(8, policy)
        manager.prepare_store(keys(*range(8)), ReqContext())
        manager.complete_store(keys(*range(8)))
        manager.on_schedule_end()
        for number in range(500):
            pinned = [one for one in manager.rows.index if manager.rows.table.ref_cnt[manager.rows.index[one]] == 0][:7]
            manager.prepare_load(pinned, ReqContext())
            manager.prepare_store([key(100 + 3 * number), key(101 + 3 * number)], ReqContext())  # refused
            manager.complete_load(pinned)
            manager.touch(pinned)
            manager.on_schedule_end()
        grown = {path: size for path, size in container_sizes(manager).items() if size > 9}
        assert not grown


def test_the_walk_finds_what_grows() -> None:
    rig = Rig(4, "a")
    assert isinstance(rig.tiers[0], ScriptedTier)
    before = container_sizes(rig.manager)
    for number in range(50):
        rig.manager.lookup(key(number), ReqContext(f"never finished {number}"))
    grown = {path for path, size in container_sizes(rig.manager).items() if size >= 50 > before.get(path, 0)}
    assert any(path.endswith("._requests") for path in grown)
