"""What tiers answer that is no answer: it fails what it belongs to, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from manager_rig import ABSENT, PENDING, R1, R2, READY, ROW_BYTES, Rig, key, keys, worker_of

from tiering.errors import TierError
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.secondary_tier import JobResult
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, ResourceWatch, check_quiescent, drain
from tiering.tier import TierContext

NO_FLAGS: list[Any] = [OSError("what asyncio.gather returns of a call that failed"), "yes", 2, None, [True], object()]


class WordlessError(Exception):
    """An error of a library that cannot say what it is."""

    def __str__(self) -> str:
        raise AttributeError("response")


class Answering(MemoryTier):
    """Answers with whatever a test has it answer."""

    answer_load: Callable[[Sequence[OffloadKey]], Any]

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        answer: list[bool] = self.answer_load(keys)
        return answer


class Asked(MemoryTier):
    """Has no `contains`, so each question is one of its own."""

    contains = None  # type: ignore[assignment]

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        raise WordlessError


def _raise(error: BaseException) -> Any:
    raise error


@pytest.mark.parametrize("flag", NO_FLAGS, ids=lambda flag: type(flag).__name__)
def test_a_load_answered_with_anything_but_flags_makes_nothing_readable(flag: object) -> None:
    rows = PlainRows(4, ROW_BYTES)
    tiers: list[Answering] = []
    with worker_of(rows, _making(Answering, tiers)) as worker:
        manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, mmap_region=rows), [worker])
        tiers[0].objects.update(dict.fromkeys(keys(1, 2), bytes(ROW_BYTES)))
        tiers[0].answer_load = lambda keys: [True, flag]
        assert [manager.status(one, R1) for one in keys(1, 2)] == [PENDING, PENDING]
        drain(manager)
        assert [manager.status(one, R1) for one in keys(1, 2)] == [ABSENT, ABSENT]
        stats = manager.get_stats()["tiers"]["memory"]
        assert (stats["load_failures"], stats["faults"]) == (2, 1)
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


@pytest.mark.parametrize("flag", NO_FLAGS, ids=lambda flag: type(flag).__name__)
def test_so_it_does_in_the_result_of_a_tier_with_threads_of_its_own(flag: Any) -> None:
    rig = Rig(4, "native", promotion_limit=1.0)
    rig.tier.objects = set(keys(1, 2))
    rig.statuses(R1, *keys(1, 2))
    rig.step()
    (job,) = rig.tier.jobs
    rig.tier.jobs.clear()
    rig.tier.report(JobResult(job.job_id, [True, flag]))
    assert rig.statuses(R1, *keys(1, 2)) == [ABSENT, ABSENT]
    rig.finish(R1)
    rig.check()


@pytest.mark.parametrize("junk", [None, 7, [], "result"])
def test_junk_among_results_costs_no_other_result(junk: Any) -> None:
    rig = Rig(4, "native")
    rig.store(R1, key(1))
    rig.store(R1, key(2))
    rig.step()
    rig.tier.finish()
    rig.tier.report(junk)
    rig.tier.finish()
    rig.step()
    stats = rig.tier_stats("native")
    assert (stats["stored_chunks"], stats["faults"], stats["jobs_in_flight"]) == (2, 1, 0)
    rig.finish(R1)
    rig.check()


@pytest.mark.parametrize(
    "error",
    [WordlessError(), SystemExit(1), GeneratorExit(), asyncio.CancelledError()],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_any_kind_in_any_call_costs_a_miss(error: BaseException) -> None:
    for method in ("lookup", "submit_load", "on_schedule_end", "on_request_finished", "touch", "take_events"):
        rig = Rig(4, "bad", "good")
        bad, good = rig.tiers
        bad.objects, good.objects = {key(1)}, {key(1)}
        bad.raise_in(method, *[error] * 20)
        bad.raise_in("has_pending_work", *[error] * 20)
        bad.raise_in("get_finished_jobs", error)
        assert rig.wait(R1, keys(1)).num_ready == 1
        rig.load(R1, key(1))
        assert rig.manager.has_pending_work() in {True, False}
        rig.manager.take_events()
        rig.finish(R1)
        rig.end_jobs()
        assert rig.tier_stats("bad")["faults"] > 0
        rig.check()


def test_a_job_or_question_that_ends_in_an_error_without_words_has_its_end() -> None:
    rows = PlainRows(4, ROW_BYTES)
    tiers: list[Answering] = []
    with worker_of(rows, _making(Answering, tiers)) as loading, worker_of(rows, _making(Asked, []), name="b") as asked:
        manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, mmap_region=rows), [loading, asked])
        tiers[0].objects[key(1)] = bytes(ROW_BYTES)
        tiers[0].answer_load = lambda keys: _raise(WordlessError())
        for _ in range(3):
            manager.lookup(key(1), R1)
            drain(manager)
        assert manager.get_stats()["tiers"]["memory"]["load_failures"] == 1
        assert manager.get_stats()["tiers"]["b"]["lookup_failures"] == 1
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


@pytest.mark.parametrize("report", ["report_evicted", "report_stored", "report_corrupt"])
@pytest.mark.parametrize("junk", [None, key(1), [[1]], "ab"], ids=repr)
def test_a_report_of_anything_but_keys_is_refused_where_it_is_made(report: str, junk: Any) -> None:
    rows = PlainRows(4, ROW_BYTES)
    tiers: list[MemoryTier] = []
    with worker_of(rows, _making(MemoryTier, tiers), events=True) as worker:
        primary = CPUPrimaryTierOffloadingManager(4, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES)
        assert manager.prepare_store([key(1)], R1)
        manager.complete_store([key(1)])
        with pytest.raises(TypeError):
            getattr(tiers[0].context, report)(junk)
        drain(manager)
        assert manager.get_stats()["tiers"]["memory"]["stored_chunks"] == 1
        assert manager.get_stats()["tiers"]["memory"]["faults"] == 0
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


def test_a_touch_that_raises_costs_nothing_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Untouchable(MemoryTier):
        def touch(self, keys: Sequence[OffloadKey]) -> None:
            raise OSError("no")

    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows, _making(Untouchable, [])) as worker:
        manager = TieringOffloadingManager(CPUPrimaryTierOffloadingManager(4, mmap_region=rows), [worker])
        for request in (R1, R2):
            assert manager.prepare_store([key(1)], request) is not None
            manager.complete_store([key(1)])
            manager.on_request_finished(request)
            drain(manager)
        assert manager.status(key(1), R1) is READY
        assert "never retrieved" not in caplog.text
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 4)


@pytest.mark.parametrize(
    "error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()], ids=repr
)
def test_opening_and_closing_end_nobody_but_the_tier(error: BaseException) -> None:
    class Opening(MemoryTier):
        async def open(self) -> None:
            raise error

    class Closing(MemoryTier):
        async def close(self) -> None:
            raise error

    rows = PlainRows(4, ROW_BYTES)
    with ResourceWatch():
        with pytest.raises((TierError, CancelledError)), worker_of(rows, _making(Opening, [])):
            pass
        manager = TieringOffloadingManager(
            CPUPrimaryTierOffloadingManager(4, mmap_region=rows),
            [_worker(rows, Closing), _worker(rows, MemoryTier)],
        )
        with pytest.raises((TierError, CancelledError)):
            manager.shutdown()


def _worker(rows: PlainRows, tier: type[MemoryTier]) -> TierWorker:
    return TierWorker(
        _making(tier, []),
        JobLoop(),
        rows.row_views,
        name=tier.__name__,
        row_bytes=ROW_BYTES,
        namespace=Namespace("model", row_bytes=ROW_BYTES),
    )


def _making(tier: type[MemoryTier], made: list[Any]) -> Callable[[TierContext], MemoryTier]:
    def make(context: TierContext) -> MemoryTier:
        made.append(tier(MemoryTierConfig(), context))
        return made[-1]  # type: ignore[no-any-return]

    return make


def test_an_answer_that_is_neither_true_nor_false_is_a_miss() -> None:
    rig = Rig(4, "bad")
    rig.tier.answers[key(1)] = np.array([True, False])  # type: ignore[assignment]
    assert rig.statuses(R1, key(1)) == [ABSENT]
    assert rig.tier_stats("bad")["lookup_failures"] == 1
    rig.finish(R1)
    rig.check()
