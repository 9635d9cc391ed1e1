"""Questions to a tier that answers later, and the worker that asks them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from manager_rig import ROW_BYTES, key, keys, worker_of

from tiering.keys import OffloadKey
from tiering.questions import Questions
from tiering.secondary_tier import TransferJob
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, ResourceWatch
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
