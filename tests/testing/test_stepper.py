"""Calls of a tier in the order that the test says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shelf_tier import ShelfTests

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, Stepper, check_quiescent, drain
from tiering.tier import LimitsConfig, Tier, TierContext

NUM_ROWS = 4


def key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), 0)


class TestASteppedTierSetFree(ShelfTests):
    """The wrapper hides nothing of the tier inside."""

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        stepper = Stepper()
        stepper.free()
        return stepper.wrap(super().make_tier(place, context, max_chunks))

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        return super().read_object(tier.inner, key)  # type: ignore[attr-defined]

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        super().write_object(tier.inner, key, payload)  # type: ignore[attr-defined]

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        super().remove_object(tier.inner, key)  # type: ignore[attr-defined]

    def break_storage(self, tier: Tier) -> None:
        super().break_storage(tier.inner)  # type: ignore[attr-defined]

    def mend_storage(self, tier: Tier) -> None:
        super().mend_storage(tier.inner)  # type: ignore[attr-defined]


class AsksEachTime(MemoryTier):
    contains = None  # type: ignore[assignment]


@contextmanager
def stepped(kind: type[MemoryTier] = MemoryTier) -> Iterator[tuple[TieringOffloadingManager, Stepper]]:
    rows = PlainRows(NUM_ROWS, 64)
    stepper = Stepper()
    worker = TierWorker(
        lambda context: stepper.wrap(kind(MemoryTierConfig(), context)),
        JobLoop(),
        rows.row_views,
        name="stepped",
        row_bytes=64,
        namespace=Namespace("model", row_bytes=64),
        limits=LimitsConfig(store_share=1.0),
    )
    primary = CPUPrimaryTierOffloadingManager(NUM_ROWS, mmap_region=rows)
    manager = TieringOffloadingManager(primary, [worker], row_bytes=64)
    try:
        yield manager, stepper
        stepper.free()
        drain(manager)
        check_quiescent(manager, NUM_ROWS)
    finally:
        stepper.free()
        manager.shutdown()


def begin_stores(manager: TieringOffloadingManager, *numbers: int) -> None:
    for number in numbers:
        assert manager.prepare_store([key(number)], ReqContext()) is not None
        manager.complete_store([key(number)])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_stores_end_in_the_order_that_is_wanted(order: tuple[int, ...]) -> None:
    with stepped() as (manager, stepper):
        begin_stores(manager, 0, 1, 2)
        manager.on_schedule_end()
        steps = stepper.wait_for(3, "store")
        assert [step.keys for step in steps] == [(key(number),) for number in range(3)]
        for num_ended, chosen in enumerate(order, start=1):
            stepper.run(steps[chosen])
            manager.on_schedule_end()
            assert manager.get_stats()["tiers"]["stepped"]["stored_chunks"] == num_ended
            pinned = {row for row, count in enumerate(manager.primary_tier.rows.table.ref_cnt) if count}
            waiting = {manager.primary_tier.rows.index[key(number)] for number in order[num_ended:]}
            assert pinned == waiting, "each row is released by its own store"


def test_tc_50_an_answer_older_than_a_store_does_not_count() -> None:
    """The question "is it there?" is on its way, the chunk is stored, then the answer "no" comes."""
    with stepped(AsksEachTime) as (manager, stepper):
        request = ReqContext("asking")
        assert manager.status(key(1), request) is LookupStatus.UNKNOWN
        manager.on_schedule_end()
        (question,) = stepper.wait_for(1, "lookup")
        begin_stores(manager, 1)
        stepper.run_first("store")
        manager.on_schedule_end()
        manager.reset_cache()
        stepper.run(question)
        manager.on_schedule_end()
        assert manager.status(key(1), request) is LookupStatus.PENDING, "the store has answered the question"
        manager.on_schedule_end()
        stepper.run_first("load")
        manager.on_schedule_end()
        assert manager.status(key(1), request) is LookupStatus.READY
        manager.on_request_finished(request)


def test_a_wait_for_nothing_ends_and_says_what_there_is() -> None:
    with stepped() as (manager, stepper):
        begin_stores(manager, 1)
        stepper.wait_for(1)
        stepper._timeout_seconds = 0.01
        with pytest.raises(TimeoutError, match=r"2 calls of load expected; waiting: \[store of 1 chunks\]"):
            stepper.wait_for(2, "load")
