"""Deadlines, breaker and shedding: a tier that is slow, stuck or broken costs misses and a bounded number of rows."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, ROW_BYTES, UNKNOWN, Rig, key, keys, worker_of

from tiering.breaker import Breaker, BreakerState
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, check_quiescent, drain
from tiering.tier import BreakerConfig, LimitsConfig, TierContext

LIMITS = LimitsConfig(lookup_timeout=1.0, load_timeout=1.0, store_timeout=1.0)


def patient(name: str = "disk", *more: str, num_rows: int = 4, breaker: BreakerConfig | None = None) -> Rig:
    """A rig whose tiers have deadlines of one second."""
    return Rig(num_rows, name, *more, limits=LIMITS, breaker=breaker or BreakerConfig())


@pytest.mark.parametrize("late_success", [True, False])
def test_tc_16_pending_has_a_deadline(late_success: bool) -> None:
    rig = patient()
    rig.tier.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    (job,) = rig.tier.jobs
    rig.now = 0.9
    assert rig.statuses(R1, key(1)) == [PENDING]
    assert rig.statuses(R2, key(1)) == [PENDING]
    rig.step()
    rig.now = 1.0
    assert rig.statuses(R1, key(1)) == [ABSENT]
    assert rig.statuses(R2, key(1)) == [ABSENT], "another try would only be late as well"
    assert rig.manager.prepare_store(keys(11, 12, 13, 14), R3) is None, "the tier may still write into its row"
    store = rig.store(R3, *keys(11, 12, 13))
    assert not set(store.store_spec.block_ids.tolist()) & set(job.rows)
    rig.step()
    rig.now = 3.0
    rig.tier.finish(job, late_success)
    rig.step()
    assert rig.tier_stats("disk")["load_timeouts"] == 1
    if late_success:
        rig.finish(R1)
        assert rig.statuses(R1, key(1)) == [READY], "late, but right"
        assert rig.load(R1, key(1)) == list(job.rows)
    rig.end_jobs()
    for request in (R1, R2, R3):
        rig.finish(request)
    rig.check()


def test_a_late_load_falls_through_to_the_next_tier() -> None:
    rig = patient("slow", "fast")
    slow, fast = rig.tiers
    slow.objects = fast.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    rig.now = 1.0
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    fast.finish()
    assert rig.statuses(R1, key(1)) == [READY]
    assert rig.manager.get_load_source(key(1), R1) == "fast"
    rig.load(R1, key(1))
    slow.finish()
    rig.finish(R1)
    rig.step()
    rig.check()


def hedged(num_rows: int = 4) -> Rig:
    """A rig with a slow load under way from `slow`, begun again from `fast`."""
    limits = LimitsConfig(hedge_quantile=0.9, load_timeout=100.0)
    rig = Rig(num_rows, "slow", "fast", limits=limits)
    slow, fast = rig.tiers
    for number in range(100, 120):
        slow.objects = {key(number)}
        assert rig.wait(R3, keys(number)).num_ready == 1
        rig.finish(R3)
        rig.step()
    slow.objects = fast.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    assert len(slow.jobs) == 1
    rig.now += 1.0
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    return rig


@pytest.mark.parametrize("first", ["slow", "fast"])
def test_a_slow_load_is_hedged_and_the_first_to_end_counts(first: str) -> None:
    rig = hedged()
    by_name = dict(zip(("slow", "fast"), rig.tiers, strict=True))
    assert [len(tier.jobs) for tier in rig.tiers] == [1, 1]
    winner, other = by_name.pop(first), by_name.popitem()[1]
    (row,) = winner.jobs[0].rows
    winner.finish()
    assert rig.statuses(R1, key(1)) == [READY]
    assert rig.load(R1, key(1)) == [row]
    assert rig.primary.rows.num_busy() == 1, "the other one may still write into its row"
    other.finish()
    rig.step(2)
    assert rig.primary.rows.num_busy() == 0
    assert rig.statuses(R2, key(1)) == [READY]
    assert rig.load(R2, key(1)) == [row]
    for request in (R1, R2):
        rig.finish(request)
    rig.check()


def test_a_hedge_that_fails_leaves_the_first_load_in_the_race() -> None:
    rig = hedged()
    slow, fast = rig.tiers
    fast.finish(succeeded=False)
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    slow.finish()
    assert rig.statuses(R1, key(1)) == [READY]
    rig.load(R1, key(1))
    rig.finish(R1)
    rig.check()


def test_without_a_second_row_there_is_no_hedge() -> None:
    rig = hedged(num_rows=1)
    slow, fast = rig.tiers
    assert (len(slow.jobs), len(fast.jobs)) == (1, 0)
    slow.finish()
    assert rig.statuses(R1, key(1)) == [READY]
    rig.load(R1, key(1))
    rig.finish(R1)
    rig.check()


def test_what_is_late_across_a_reset_comes_back_as_nothing() -> None:
    rig = hedged()
    rig.manager.reset_cache()
    for tier in rig.tiers:
        tier.finish()
    rig.step(2)
    assert not rig.primary.rows.index
    assert rig.primary.rows.num_free == 4
    rig.finish(R1)
    rig.check()


def test_what_is_late_after_a_reset_comes_back_as_nothing() -> None:
    rig = patient()
    rig.tier.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [PENDING]
    rig.step()
    rig.manager.reset_cache()
    rig.now = 10.0
    rig.step()
    assert rig.tier_stats("disk")["load_timeouts"] == 1
    rig.tier.finish()
    rig.step()
    assert not rig.primary.rows.index
    rig.finish(R1)
    rig.check()


def test_a_question_not_answered_in_time_is_a_miss() -> None:
    rig = patient("silent", "next")
    silent, after = rig.tiers
    silent.answers[key(1)] = None
    after.objects = {key(1)}
    assert rig.statuses(R1, key(1)) == [UNKNOWN]
    rig.step()
    rig.now = 1.0
    assert rig.statuses(R1, key(1)) == [PENDING], "the tiers after it are still asked"
    assert rig.tier_stats("silent")["lookup_timeouts"] == 1
    rig.step()
    after.finish()
    rig.step()
    rig.finish(R1)
    rig.now = 10.0
    rig.step()
    assert not rig.manager._tiers[0]._unanswered
    rig.check()


def test_a_question_that_failed_is_not_late_for_the_next_request() -> None:
    rig = patient()
    rig.tier.answers[key(1)] = None
    assert rig.statuses(R1, key(1)) == [UNKNOWN]
    rig.step()
    rig.tier.raise_in("lookup", OSError("unreachable"))
    assert rig.statuses(R1, key(1)) == [ABSENT]
    rig.step()
    rig.now = 1.5
    assert rig.statuses(R2, key(1)) == [UNKNOWN]
    assert rig.tier_stats("disk")["lookup_timeouts"] == 0
    rig.tier.answers[key(1)] = False
    rig.step()
    for request in (R1, R2):
        rig.finish(request)
    rig.check()


def test_a_question_of_a_request_that_has_ended_is_not_late_for_the_next_one() -> None:
    """A client that gives up and tries again must not make a tier seem silent."""
    rig = patient()
    rig.tier.answers[key(1)] = None
    assert rig.statuses(R1, key(1)) == [UNKNOWN]
    rig.step()
    rig.finish(R1)
    rig.now = 1.5
    rig.step()
    assert rig.statuses(R2, key(1)) == [UNKNOWN]
    assert rig.tier_stats("disk")["lookup_timeouts"] == 0
    rig.tier.answers[key(1)] = False
    rig.step()
    rig.finish(R2)
    rig.check()


def test_a_store_that_does_not_end_keeps_its_rows_and_is_counted_once() -> None:
    rig = patient()
    rig.store(R1, key(1))
    (job,) = rig.tier.jobs
    rig.now = 5.0
    rig.step(3)
    assert rig.tier_stats("disk")["store_timeouts"] == 1
    assert rig.primary.rows.num_busy() == 1
    rig.tier.finish(job)
    rig.step()
    assert rig.primary.rows.num_busy() == 0
    rig.finish(R1)
    rig.check()


def test_tc_89_a_slow_tier_pins_a_bounded_share_of_the_rows() -> None:
    rig = Rig(64, "fast", "slow", limits=LimitsConfig())
    fast, slow = rig.tiers
    refused = 0
    for number in range(500):
        store = rig.manager.prepare_store(keys(number), R1)
        refused += store is None
        if store is not None:
            rig.write(store)
            rig.manager.complete_store(store.keys_to_store)
        fast.finish_all()
        rig.step(2)
        assert sum(len(job.keys) for job in slow.jobs) <= 32
        if number % 20 == 0:
            slow.finish()
    assert refused == 0
    assert len(fast.objects) == 500
    assert rig.tier_stats("slow")["stores_shed"] == 500 - len(slow.objects) - len(slow.jobs)
    slow.finish_all()
    rig.step()
    before = rig.tier_stats("slow")["stores_shed"]
    rig.store(R1, key(900))
    assert rig.tier_stats("slow")["stores_shed"] == before, "its stores resume"
    rig.end_jobs()
    rig.finish(R1)
    rig.check()


@pytest.mark.parametrize("refill", [True, False])
def test_what_a_slower_tier_had_goes_to_the_faster_ones_if_asked(refill: bool) -> None:
    rig = Rig(4, "disk", "bucket", refill_faster_tiers=refill)
    disk, bucket = rig.tiers
    bucket.objects = set(keys(1, 2))
    rig.statuses(R1, *keys(1, 2))
    rig.step()
    bucket.finish(succeeded=[True, False])
    rig.step(2)
    assert [job.keys for job in disk.jobs] == ([(key(1),)] if refill else [])
    rig.end_jobs()
    assert disk.objects == ({key(1)} if refill else set())
    assert not bucket.calls_of("submit_store")
    rig.finish(R1)
    rig.check()


def test_an_idle_tier_takes_a_broadcast_of_any_size() -> None:
    rig = Rig(8, "disk")
    rig.store(R1, *keys(*range(8)))
    assert [len(job.keys) for job in rig.tier.jobs] == [8]
    rig.end_jobs()
    rig.finish(R1)
    rig.check()


def test_the_breaker_opens_sheds_tries_one_job_and_closes_by_itself() -> None:
    config = BreakerConfig(window=4, min_failures=2, failure_ratio=0.5, open_for=5.0, max_open_for=8.0)
    rig = patient(num_rows=16, breaker=config)
    for number in (1, 2):
        rig.store(R1, key(number))
        rig.tier.finish(succeeded=False, error="broken")
        rig.step(2)
    assert rig.tier_stats("disk")["breaker"] == "open"
    rig.tier.objects = {key(50), key(51)}
    rig.store(R1, key(3))
    assert rig.tier_stats("disk")["stores_shed"] == 1
    assert rig.statuses(R2, key(50)) == [ABSENT]
    assert not rig.tier.calls_of("lookup"), "it is left alone"
    rig.step()

    rig.now = 5.0
    rig.finish(R2)
    assert rig.statuses(R2, key(50)) == [PENDING]
    assert rig.statuses(R3, key(51)) == [PENDING]
    rig.step()
    assert [job.keys for job in rig.tier.jobs] == [(key(50),)], "one job is let through"
    rig.tier.finish(succeeded=False, error="still broken")
    rig.step(2)
    assert rig.tier_stats("disk")["breaker"] == "open"

    rig.now = 5.0 + 7.9
    assert rig.tier_stats("disk")["breaker"] == "open"
    rig.store(R1, key(4))
    assert not rig.tier.jobs, "the second pause is longer"
    rig.now = 5.0 + 8.0
    rig.store(R1, key(5))
    rig.tier.finish()
    rig.step(2)
    assert rig.tier_stats("disk")["breaker"] == "closed"
    assert rig.tier_stats("disk")["breaker_opened"] == 2
    for request in (R1, R2, R3):
        rig.finish(request)
    rig.check()


def test_failed_lookups_open_the_breaker_once_a_step_at_most() -> None:
    rig = patient(num_rows=8, breaker=BreakerConfig(min_failures=3))
    for _ in range(2):
        rig.tier.raise_in("lookup", *[OSError("unreachable")] * 4)
        assert rig.statuses(R1, *keys(1, 2, 3, 4)) == [ABSENT] * 4
        rig.finish(R1)
        rig.step()
        rig.step()
    assert rig.tier_stats("disk")["breaker"] == "closed"
    rig.tier.raise_in("lookup", OSError("unreachable"))
    rig.statuses(R1, key(9))
    rig.finish(R1)
    rig.step()
    rig.step()
    assert rig.tier_stats("disk")["breaker"] == "open"
    rig.check()


def test_a_breaker_counts_the_last_jobs_only() -> None:
    now = 0.0
    breaker = Breaker("tier", BreakerConfig(window=4, min_failures=2, failure_ratio=0.75), lambda: now)
    for failed in (False, True, True, False, False, False, True, True):
        (breaker.failed if failed else breaker.succeeded)()
        assert breaker.state is BreakerState.CLOSED
    breaker.failed()
    assert breaker.state is BreakerState.OPEN


def test_a_tier_with_many_corrupt_chunks_is_quarantined() -> None:
    now = 0.0
    contexts: list[TierContext] = []

    def make_tier(context: TierContext) -> MemoryTier:
        contexts.append(context)
        return MemoryTier(MemoryTierConfig(), context)

    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows, make_tier) as worker:
        worker.breaker = BreakerConfig(max_corrupt=3, quarantine_for=600.0)
        primary = CPUPrimaryTierOffloadingManager(4, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES, clock=lambda: now)
        contexts[0].report_corrupt(keys(1, 2))
        manager.on_schedule_end()
        now = 3600.0
        contexts[0].report_corrupt(keys(3, 4))
        manager.on_schedule_end()
        assert manager.get_stats()["tiers"]["memory"]["breaker"] == "closed", "not within one hour"
        contexts[0].report_corrupt(keys(5))
        manager.on_schedule_end()
        stats = manager.get_stats()["tiers"]["memory"]
        assert (stats["breaker"], stats["corrupt"]) == ("open", 5)
        now = 3600.0 + 599.0
        assert manager.prepare_store([key(1)], R1)
        manager.complete_store([key(1)])
        assert manager.get_stats()["tiers"]["memory"]["stores_shed"] == 1
        now = 3600.0 + 600.0
        assert manager.prepare_store([key(2)], R1)
        manager.complete_store([key(2)])
        drain(manager)
        assert manager.get_stats()["tiers"]["memory"]["breaker"] == "closed"
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


class BlockingTier(MemoryTier):
    """Blocks its event loop, which no tier may do."""

    gate = threading.Event()

    def contains(self, key: OffloadKey) -> bool:
        return True

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        self.gate.wait()
        return await super().load(keys, rows)


class ExitingTier(MemoryTier):
    """Tries to end the process, or at least the loop."""

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        raise SystemExit(3)


def test_a_tier_that_blocks_its_loop_stops_no_other() -> None:
    rows = PlainRows(8, ROW_BYTES)
    BlockingTier.gate.clear()

    def make_blocking(context: TierContext) -> MemoryTier:
        return BlockingTier(MemoryTierConfig(), context)

    now = 0.0
    with worker_of(rows, make_blocking, name="blocking") as blocking, worker_of(rows, name="good") as good:
        blocking.limits = LIMITS
        primary = CPUPrimaryTierOffloadingManager(8, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [blocking, good], row_bytes=ROW_BYTES, clock=lambda: now)
        assert manager.status(key(1), R1) is PENDING
        manager.on_schedule_end()
        assert manager.prepare_store([key(2)], R2)
        manager.complete_store([key(2)])
        while not manager.get_stats()["tiers"]["good"]["stored_chunks"]:
            os.sched_yield()
            manager.on_schedule_end()
        now = 1.0
        assert manager.status(key(1), R1) is ABSENT
        BlockingTier.gate.set()
        drain(manager)
        for request in (R1, R2):
            manager.on_request_finished(request)
        drain(manager)
        check_quiescent(manager, 8)


def test_a_tier_that_raises_system_exit_fails_its_job_and_goes_on() -> None:
    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows, lambda context: ExitingTier(MemoryTierConfig(), context)) as worker:
        primary = CPUPrimaryTierOffloadingManager(4, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES)
        for number in (1, 2):
            assert manager.prepare_store([key(number)], R1)
            manager.complete_store([key(number)])
            drain(manager)
        assert manager.get_stats()["tiers"]["memory"]["store_failures"] == 2
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


def test_a_forked_child_gets_misses_at_once_and_leaves_the_parent_alone() -> None:
    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows) as worker:
        primary = CPUPrimaryTierOffloadingManager(4, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES)
        assert manager.prepare_store([key(1)], R1)
        manager.complete_store([key(1)])
        drain(manager)
        manager.reset_cache()
        child = os.fork()
        if child == 0:
            status = manager.status(key(1), R2)
            manager.on_schedule_end()
            again = manager.status(key(1), R2)
            signal.alarm(20)  # a shutdown that waits for threads that are not here ends as a failure
            manager.shutdown()
            os._exit(0 if (status, again) == (PENDING, ABSENT) and not manager.has_pending_work() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert manager.status(key(1), R2) is PENDING
        drain(manager)
        assert manager.status(key(1), R2) is READY
        for request in (R1, R2):
            manager.on_request_finished(request)
        drain(manager)
        check_quiescent(manager, 4)
