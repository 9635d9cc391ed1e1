"""Tiers that raise, fail, lie or stay silent: each costs misses, and nothing else."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, ROW_BYTES, Rig, key, keys, worker_of

from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, ResourceWatch, check_quiescent, drain
from tiering.testing.plain_rows import UNWRITTEN
from tiering.tier import BreakerConfig, TierContext


class FailingStores(MemoryTier):
    """Raises in the threads of `run_blocking`, as an I/O call would."""

    failures: Iterable[BaseException] = ()

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        error = next(iter(self.failures), None)
        if error is not None:
            await self.context.run_blocking(_raise, error)
        return await super().store(keys, rows)


@contextmanager
def allocating() -> Iterator[None]:
    """Another thread that allocates all the time."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [bytearray(1 << 16) for _ in iter(stop.is_set, True)])
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space"), OSError(errno.EIO, "i/o"), ValueError("alignment"), MemoryError()]
)
def test_tc_06_an_io_error_releases_the_rows(error: Exception) -> None:
    tiers = []

    def make_tier(context: TierContext) -> FailingStores:
        tiers.append(FailingStores(MemoryTierConfig(), context))
        return tiers[0]

    rows = PlainRows(4, ROW_BYTES)
    with ResourceWatch(), allocating(), worker_of(rows, make_tier) as worker:
        worker.breaker = BreakerConfig(min_failures=51, window=51)  # each job is to reach the tier
        primary = CPUPrimaryTierOffloadingManager(4, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES)
        tiers[0].failures = [error]
        for number in range(50):
            wanted = keys(3 * number, 3 * number + 1, 3 * number + 2)
            assert manager.prepare_store(wanted, R1)
            manager.complete_store(wanted)
            drain(manager)
        stats = manager.get_stats()["tiers"]["memory"]
        assert (stats["store_failures"], stats["stored_chunks"], stats["faults"]) == (150, 0, 50)
        assert primary.rows.num_busy() == 0
        tiers[0].failures = []
        assert manager.prepare_store(keys(999), R1)
        manager.complete_store(keys(999))
        drain(manager)
        assert list(tiers[0].objects) == keys(999), "the worker must have survived"
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


def test_tc_07_submit_raises_in_the_middle_of_a_broadcast() -> None:
    rig = Rig(4, "bad", "good")
    bad, good = rig.tiers
    bad.raise_in("submit_store", RuntimeError("queue is broken"))
    rig.store(R1, key(1))
    assert [job.keys for job in good.jobs] == [(key(1),)]
    assert rig.tier_stats("bad")["store_failures"] == 1
    assert rig.tier_stats("bad")["jobs_in_flight"] == 0
    assert rig.primary.rows.num_busy() == 1, "pinned for the good tier"
    rig.end_jobs()
    assert rig.primary.rows.num_busy() == 0
    assert good.objects == {key(1)}
    rig.finish(R1)
    rig.check()


def test_submit_of_a_promotion_raises() -> None:
    rig = Rig(4, "bad", "good")
    bad, good = rig.tiers
    bad.objects, good.objects = {key(1)}, {key(1)}
    bad.raise_in("submit_load", RuntimeError("queue is broken"))
    assert rig.wait(R1, keys(1)).num_ready == 1
    assert len(bad.calls_of("submit_load")) == len(good.calls_of("submit_load")) == 1
    assert rig.manager.get_load_source(key(1), R1) == "good"
    rig.load(R1, key(1))
    rig.finish(R1)
    rig.check()


def test_tc_12_a_failed_promotion_is_not_retried_for_ever() -> None:
    rig = Rig(8, "disk")
    rig.tier.objects = set(keys(1, 2, 3))
    for _ in range(50):
        for request in (R1, R2):
            rig.manager.lookup_prefix(keys(1, 2, 3), request)
        rig.step()
        while rig.tier.jobs:
            rig.tier.finish(succeeded=[wanted != key(2) for wanted in rig.tier.jobs[0].keys])
    loads = [wanted for call in rig.tier.calls_of("submit_load") for wanted in call.keys]
    assert loads.count(key(2)) <= 2, "at most one attempt per request"
    assert rig.statuses(R1, *keys(1, 2, 3)) == [READY, ABSENT, READY]
    assert rig.statuses(R2, *keys(1, 2, 3)) == [READY, ABSENT, READY]
    rig.store(R1, key(2))
    rig.end_jobs()
    assert rig.manager.lookup_prefix(keys(1, 2, 3), R3).num_ready == 3
    rig.load(R3, *keys(1, 2, 3))
    rig.finish(R1, R2, R3)
    rig.check()


def test_a_failed_promotion_falls_through_to_the_next_tier() -> None:
    rig = Rig(8, "first", "second", "third")
    for tier in rig.tiers:
        tier.objects = set(keys(1, 2))
    assert rig.statuses(R1, *keys(1, 2)) == [PENDING, PENDING]
    rig.step()
    rig.tiers[0].finish(succeeded=[False, True])
    assert rig.statuses(R1, *keys(1, 2)) == [PENDING, READY]
    rig.step()
    rig.tiers[1].finish(succeeded=False)
    assert rig.wait(R1, keys(1, 2)).num_ready == 2
    assert [rig.manager.get_load_source(wanted, R1) for wanted in keys(1, 2)] == ["third", "first"]
    rig.load(R1, *keys(1, 2))
    rig.finish(R1)
    rig.check()


def test_a_promotion_that_fails_in_every_tier_is_a_miss() -> None:
    rig = Rig(8, "first", "second")
    for tier in rig.tiers:
        tier.objects = set(keys(1))
    for tier in rig.tiers:
        assert rig.statuses(R1, key(1)) == [PENDING]
        rig.step()
        tier.finish(succeeded=False)
    assert rig.statuses(R1, key(1)) == [ABSENT]
    rig.step()
    assert rig.statuses(R1, key(1)) == [ABSENT], "and it stays one for this request"
    rig.finish(R1)
    rig.check()


def test_tc_16_a_row_is_not_reused_while_a_late_load_may_write() -> None:
    for succeeded in (True, False):
        rig = Rig(2, "slow", promotion_limit=1.0)
        rig.tier.objects = {key(1)}
        assert rig.statuses(R1, key(1)) == [PENDING]
        rig.step()
        (job,) = rig.tier.jobs
        rig.finish(R1)
        rig.step(3)
        rig.manager.reset_cache()
        store = rig.prepare(R2, keys(7))
        assert not set(store.store_spec.block_ids.tolist()) & set(job.rows)
        assert rig.manager.prepare_store(keys(8), R2) is None, "the other row may still be written"
        rig.write(store)
        rig.manager.complete_store(keys(7))
        rig.tier.finish(job, succeeded=succeeded)
        rig.end_jobs()
        assert rig.statuses(R3, *keys(1, 7)) == [PENDING, READY], (
            "the late row belongs to nobody, the tier still has it"
        )
        rig.load(R3, key(7))
        rig.finish(R2, R3)
        rig.end_jobs()
        rig.check()


@pytest.mark.parametrize("bad", [[0], [3], [5], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_tc_28_one_bad_chunk_in_a_batched_promotion(bad: list[int]) -> None:
    rig = Rig(8, "disk", promotion_limit=1.0)
    wanted = keys(1, 2, 3, 4, 5, 6)
    rig.tier.objects = set(wanted)
    rig.statuses(R1, *wanted)
    rig.step()
    assert len(rig.tier.jobs) == 1
    rig.tier.finish(succeeded=[number not in bad for number in range(6)])
    assert rig.statuses(R1, *wanted) == [ABSENT if number in bad else READY for number in range(6)]
    good = [one for number, one in enumerate(wanted) if number not in bad]
    for row in rig.load(R1, *good):
        assert UNWRITTEN not in rig.rows.array[row] or rig.rows.array[row].tolist().count(UNWRITTEN) < ROW_BYTES
    stats = rig.tier_stats("disk")
    assert (stats["loaded_chunks"], stats["load_failures"]) == (len(good), len(bad))
    assert stats["loaded_bytes"] == len(good) * ROW_BYTES
    assert rig.manager.get_stats()["rows_free"] == 8 - len(good)
    rig.finish(R1)
    rig.check()


@pytest.mark.parametrize("method", ["lookup", "on_schedule_end", "on_request_finished", "touch", "take_events"])
def test_a_tier_that_raises_in_any_call_costs_a_miss(method: str) -> None:
    rig = Rig(4, "bad", "good")
    bad, good = rig.tiers
    good.objects = {key(1)}
    bad.raise_in(method, *[RuntimeError(f"broken {number}") for number in range(20)])
    assert rig.wait(R1, keys(1)).num_ready == 1
    rig.load(R1, key(1))
    rig.store(R1, key(2))
    rig.manager.take_events()
    rig.finish(R1)
    rig.end_jobs()
    assert rig.tier_stats("bad")["faults"] > 0
    assert good.objects == set(keys(1, 2))
    rig.check()


def test_a_poll_that_raises_half_way_loses_no_result() -> None:
    rig = Rig(4, "disk")
    rig.store(R1, key(1))
    rig.store(R1, key(2))
    rig.step()
    rig.tier.finish_all()
    rig.tier.raise_in("get_finished_jobs", RuntimeError("half way"))
    rig.step()
    assert rig.tier_stats("disk")["stored_chunks"] == 1, "what was reported before the error counts"
    assert rig.tier_stats("disk")["faults"] == 1


@pytest.mark.parametrize("succeeded", [[], [True], [True] * 3, None, 7])
def test_a_result_of_the_wrong_shape_fails_its_job(succeeded: Sequence[bool]) -> None:
    rig = Rig(4, "disk")
    rig.store(R1, *keys(1, 2))
    rig.step()
    (job,) = rig.tier.jobs
    rig.tier.jobs.clear()
    rig.tier.report(JobResult(job.job_id, succeeded))
    rig.step()
    stats = rig.tier_stats("disk")
    assert (stats["stored_chunks"], stats["store_failures"], stats["faults"]) == (0, 2, 1)
    rig.finish(R1)
    rig.check()


def test_results_of_unknown_and_of_ended_jobs_are_dropped() -> None:
    rig = Rig(4, "disk")
    rig.store(R1, key(1))
    rig.step()
    job_id = rig.tier.jobs[0].job_id
    rig.tier.finish()
    rig.tier.report(JobResult(job_id, [True]))
    rig.tier.report(JobResult(12345, [True]))
    rig.step()
    assert rig.tier_stats("disk")["faults"] == 2
    assert rig.tier_stats("disk")["jobs_in_flight"] == 0
    rig.finish(R1)
    rig.check()


class FailingLookups(MemoryTier):
    contains = None  # type: ignore[assignment]  # asks every time
    answer: Callable[[Sequence[OffloadKey]], list[bool]]

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return self.answer(keys)


def _raising(error: BaseException) -> Callable[[Sequence[OffloadKey]], list[bool]]:
    def answer(keys: Sequence[OffloadKey]) -> list[bool]:
        raise error

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        _raising(RuntimeError("at call")),
        _raising(KeyboardInterrupt()),
        lambda keys: [True] * (len(keys) - 1),
        lambda keys: [True] * (len(keys) + 1),
        lambda keys: (1 // 0 for _ in keys),
        lambda keys: None,
    ],
)
def test_tc_14_a_lookup_that_fails_is_a_miss_and_is_counted(
    answer: Callable[[Sequence[OffloadKey]], list[bool]],
) -> None:
    tiers = []

    def make_tier(context: TierContext) -> FailingLookups:
        tiers.append(FailingLookups(MemoryTierConfig(), context))
        return tiers[0]

    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows, make_tier) as worker:
        manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, mmap_region=rows), [worker])
        tiers[0].answer = answer
        assert _settled(manager, R1, keys(1, 2)) == [False, False]
        assert manager.get_stats()["tiers"]["memory"]["lookup_failures"] == 2
        tiers[0].answer = lambda wanted: [one == key(3) for one in wanted]
        assert _settled(manager, R2, keys(4, 2)) == [False, False]
        assert manager.get_stats()["tiers"]["memory"]["lookup_failures"] == 2
        for request in (R1, R2):
            manager.on_request_finished(request)
        drain(manager)
        check_quiescent(manager, 4)


def _settled(manager: TieringOffloadingManager, request: ReqContext, wanted: list[OffloadKey]) -> list[bool | None]:
    while None in (answers := [manager.lookup(one, request) for one in wanted]):
        drain(manager)
    return answers
