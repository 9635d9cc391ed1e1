"""Questions to a tier that answers later, and the worker that asks them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from manager_rig import R1, ROW_BYTES, key, keys, worker_of

from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.questions import Questions
from tiering.secondary_tier import TransferJob
from tiering.testing import (
    MemoryTier,
    MemoryTierConfig,
    PlainRows,
    ResourceWatch,
    check_quiescent,
    container_sizes,
    drain,
)
from tiering.tier import TierContext


def test_a_key_is_asked_once_however_many_requests_wait() -> None:
    questions = Questions()
    assert [questions.answer(key(1), req_id) for req_id in ("r1", "r2", "r1")] == [None] * 3
    batch, asked = questions.take_unasked()
    assert asked == (key(1),)
    assert questions.answer(key(1), "r3") is None
    assert questions.take_unasked()[1] == ()
    questions.settle_batch(batch, {key(1): True})
    assert [questions.answer(key(1), req_id) for req_id in ("r1", "r2", "r3")] == [True] * 3
    assert questions.num_open == 0
    assert questions.answer(key(1), "r1") is None, "a collected answer is gone: asking again asks the tier again"


def test_a_request_that_ends_takes_its_questions_along() -> None:
    questions = Questions()
    questions.answer(key(1), "r1")
    questions.answer(key(2), "r1")
    questions.answer(key(2), "r2")
    questions.forget("r1")
    assert questions.take_unasked()[1] == (key(2),)
    questions.forget("r1")
    questions.forget("nobody")


def sizes(questions: Questions) -> dict[str, int]:
    return {path: size for path, size in container_sizes(questions).items() if path and size}


def test_an_unnamed_request_collects_in_the_step_of_the_answer_or_not_at_all() -> None:
    questions = Questions()
    assert [questions.answer(one, "") for one in keys(1, 2)] == [None, None]
    batch, _ = questions.take_unasked()
    questions.take_unasked()
    assert [questions.answer(one, "") for one in keys(1, 2)] == [None, None], "not answered yet"
    questions.settle_batch(batch, {key(1): True, key(2): False})
    assert questions.answer(key(1), "") is True
    assert questions.answer(key(1), "") is None
    batch, asked = questions.take_unasked()
    assert asked == (key(1),), "asked anew in the step in which its answer was collected"
    assert questions.answer(key(2), "") is None, "what was not there then may be there now"
    questions.settle_batch(batch, {key(1): True})
    assert questions.answer(key(1), "") is True


def test_unnamed_requests_leave_nothing() -> None:
    questions = Questions()
    for number in range(200_000):
        questions.answer(key(number), "")
        batch, asked = questions.take_unasked()
        questions.settle_batch(batch, dict.fromkeys(asked, False))
    questions.take_unasked()
    assert sizes(questions) == {"._answers": 1}
    assert questions.num_open == 0


def test_requests_that_a_silent_tier_keeps_waiting_leave_nothing() -> None:
    questions = Questions()
    for number in range(200_000):
        for one in keys(1, 2):
            assert questions.answer(one, f"request {number}") is None
        questions.take_unasked()
        questions.forget(f"request {number}")
    assert sizes(questions) == {"._abandoned": 2, "._batch_of": 2}
    assert not any(questions._waiting.values())


@pytest.mark.parametrize("settled_by_a_store", [False, True])
def test_a_silent_tier_is_asked_for_so_many_keys_only(settled_by_a_store: bool) -> None:
    """What it was asked for and has not answered is on its side, even if the answers are of no use any more."""
    questions = Questions(max_open=10)
    batches = []
    for number in range(10):
        assert questions.answer(key(number), "r1") is None
        batches.append(questions.take_unasked())
        if settled_by_a_store:
            questions.settle({key(number): True})
    for _ in range(2):
        assert questions.answer(key(10), "r1") == "10 questions have no answer yet, and no more are asked"
    assert questions.take_unasked()[1] == ()
    questions.settle_batch(batches[0][0], {key(0): True})
    assert questions.answer(key(10), "r1") is None
    assert questions.take_unasked()[1] == (key(10),)
    questions.forget("r1")


def test_a_question_that_nobody_waits_for_keeps_no_engine_awake() -> None:
    release = threading.Event()

    class Silent(MemoryTier):
        contains = None  # type: ignore[assignment]

        async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
            await self.context.run_blocking(release.wait)
            return [False] * len(keys)

    with worker_of(PlainRows(4, ROW_BYTES), lambda context: Silent(MemoryTierConfig(), context)) as worker:
        manager = TieringOffloadingManager(CPUOffloadingManager(4), [worker], row_bytes=ROW_BYTES)
        assert manager.lookup(key(1), R1) is None
        manager.on_schedule_end()
        assert manager.has_pending_work()
        manager.on_request_finished(R1)
        try:
            drain(manager)
        finally:
            release.set()
        check_quiescent(manager, 4)


def test_tc_50_a_late_answer_does_not_overtake_a_store() -> None:
    questions = Questions()
    questions.answer(key(1), "r1")
    slow, _ = questions.take_unasked()
    questions.settle({key(1): True})  # stored meanwhile
    assert questions.answer(key(1), "r1") is True
    assert questions.answer(key(1), "r2") is None
    questions.settle_batch(slow, {key(1): False})
    assert questions.answer(key(1), "r2") is None, "not asked yet: the old answer is not for r2"
    fresh, asked = questions.take_unasked()
    assert asked == (key(1),)
    questions.settle_batch(slow, {key(1): False})
    assert questions.answer(key(1), "r2") is None, "being asked: the old answer is not for r2"
    questions.settle_batch(fresh, {key(1): True})
    assert questions.answer(key(1), "r2") is True
    assert questions.num_open == 0


def test_a_close_that_raises_leaves_no_thread() -> None:
    class Unclosable(MemoryTier):
        async def close(self) -> None:
            raise TimeoutError("the other side is gone")

    rows = PlainRows(1, ROW_BYTES)
    with (
        ResourceWatch(),
        pytest.raises(TimeoutError, match="the other side"),
        worker_of(rows, lambda context: Unclosable(MemoryTierConfig(), context)),
    ):
        pass


def test_shutdown_waits_for_what_runs() -> None:
    class Slow(MemoryTier):
        def __init__(self, config: MemoryTierConfig, context: TierContext) -> None:
            super().__init__(config, context)
            self.closed_with = -1

        async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
            for _ in range(100):
                await asyncio.sleep(0)
            return await super().store(keys, rows)

        async def close(self) -> None:
            self.closed_with = len(self.objects)

    tiers = []

    def make(context: TierContext) -> Slow:
        tiers.append(Slow(MemoryTierConfig(), context))
        return tiers[0]

    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows, make) as worker:
        worker.submit_store(TransferJob(0, tuple(keys(1, 2)), (0, 1)))
        worker.submit_store(TransferJob(1, tuple(keys(3)), (2,)))
    assert tiers[0].closed_with == 3
    assert [result.succeeded for result in worker.get_finished_jobs()] == [[True, True], [True]]


def test_a_store_that_comes_after_the_shutdown_is_refused_and_keeps_no_row() -> None:
    rows = PlainRows(4, ROW_BYTES)
    with worker_of(rows) as worker:
        primary = CPUOffloadingManager(4, "lru")
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES)
        assert manager.prepare_store(keys(1), R1) is not None
        assert manager.prepare_store(keys(2), R1) is not None
    for late in keys(1, 2):
        manager.complete_store([late], True, R1)
    assert not manager.has_pending_work()
    assert manager.get_stats()["tiers"]["memory"]["store_failures"] == 2
    manager.on_request_finished(R1)
    check_quiescent(manager, 4)
