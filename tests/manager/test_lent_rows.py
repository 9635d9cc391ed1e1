"""Rows are lent to a tier until its coroutine, and calls that it has left behind, have ended, and no longer."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from manager_rig import ABSENT, PENDING, R1, ROW_BYTES, key, keys, worker_of

from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, check_quiescent, drain, fill_row, row_matches
from tiering.tier import TierContext


class LeavingTier(MemoryTier):
    """Loads of two chunks fail at once, while the call for the second one is still under way.

    Attributes:
        begun: set when that call is under way.
        left: set when the load has ended.
        touched: set by a touch, so whoever waits for one knows that the loop has done what was due before.
        go: set by a store.
        written: set when what was left behind has tried to write.
    """

    def __init__(self, config: MemoryTierConfig, context: TierContext) -> None:
        super().__init__(config, context)
        self.begun, self.left, self.touched = threading.Event(), threading.Event(), threading.Event()
        self.read_fd, self.write_fd = os.pipe()
        self.go = asyncio.Event()
        self.written = threading.Event()
        self.is_refused = False

    async def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self.touched.set()

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        try:
            await self.leave_behind(rows[1])
        finally:
            self.left.set()
        return [True, True]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        self.go.set()
        return [False] * len(keys)

    async def leave_behind(self, row: memoryview) -> None:
        raise NotImplementedError

    def fail(self) -> None:
        self.begun.wait()
        raise OSError("of one call; the other one goes on")

    def read(self, row: memoryview) -> None:
        self.begun.set()
        assert os.readv(self.read_fd, [row]) == len(row)


class GatheringTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        await asyncio.gather(self.context.run_blocking(self.fail), self.context.run_blocking(self.read, row))


class ImpatientTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        reading = asyncio.ensure_future(self.context.run_blocking(self.read, row))
        await self.context.run_blocking(self.begun.wait)
        await asyncio.wait_for(reading, 0)


class SlicingTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        await asyncio.gather(self.context.run_blocking(self.fail), self.context.run_blocking(self.read, row[:]))


class TaskTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        self.begun.set()
        await asyncio.gather(self.write_late(row), self.context.run_blocking(self.fail))

    async def write_late(self, row: memoryview) -> None:
        await self.go.wait()
        try:
            row[:] = b"\xaa" * len(row)
        except ValueError:
            self.is_refused = True
        self.written.set()


@contextmanager
def load_left_behind(tier_type: type[LeavingTier]) -> Iterator[tuple[LeavingTier, PlainRows, TieringOffloadingManager]]:
    """Both rows there are belong to a load that has ended, with one of its calls still under way."""
    rows = PlainRows(2, ROW_BYTES)
    tiers: list[LeavingTier] = []

    def make(context: TierContext) -> LeavingTier:
        tiers.append(tier_type(MemoryTierConfig(), context))
        return tiers[0]

    with worker_of(rows, make) as worker:
        (tier,) = tiers
        tier.objects.update(dict.fromkeys(keys(1, 2), b""))
        primary = CPUPrimaryTierOffloadingManager(2, mmap_region=rows)
        manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES, promotion_limit=1.0)
        assert [manager.status(one, R1) for one in keys(1, 2)] == [PENDING, PENDING]
        manager.on_schedule_end()
        assert tier.left.wait(20)
        manager.touch([key(1)])
        assert tier.touched.wait(20)
        manager.on_schedule_end()
        yield tier, rows, manager
        manager.on_request_finished(R1)
        drain(manager)
        check_quiescent(manager, 2)


@pytest.mark.parametrize("tier_type", [GatheringTier, ImpatientTier, SlicingTier])
def test_a_row_is_nobody_elses_while_a_call_of_an_ended_load_writes_into_it(tier_type: type[LeavingTier]) -> None:
    with load_left_behind(tier_type) as (tier, _, manager):
        assert manager.prepare_store([key(7)], R1) is None
        os.write(tier.write_fd, b"\xaa" * ROW_BYTES)
        drain(manager)
        assert [manager.status(one, R1) for one in keys(1, 2)] == [ABSENT, ABSENT]
        assert manager.prepare_store([key(7)], R1) is not None
        manager.complete_store([key(7)], success=False)


def test_a_task_that_an_ended_load_has_left_behind_cannot_write_into_its_row_any_more() -> None:
    with load_left_behind(TaskTier) as (tier, rows, manager):
        store = manager.prepare_store(keys(7, 8), R1)
        assert store is not None
        for stored, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            fill_row(rows.array[row], stored)
        manager.complete_store(keys(7, 8))  # `store` lets the task go
        manager.on_schedule_end()
        assert tier.written.wait(20)
        assert tier.is_refused
        for stored, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            assert row_matches(rows.array[row], stored)


class RaisingTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        await self.context.run_blocking(self.fail_over, row)

    def fail_over(self, row: memoryview) -> None:
        array = np.frombuffer(row, np.uint8)
        raise OSError(f"with an array over {array.size} bytes in the frame of the traceback")


def test_an_error_keeps_no_row_until_garbage_is_collected() -> None:
    gc.disable()
    try:
        with load_left_behind(RaisingTier) as (_, _, manager):
            drain(manager)
            assert [manager.status(one, R1) for one in keys(1, 2)] == [ABSENT, ABSENT]
    finally:
        gc.enable()


class ReleasingTier(LeavingTier):
    async def leave_behind(self, row: memoryview) -> None:
        with row:
            raise OSError("after it has released a row itself")


def test_a_tier_may_release_its_rows_itself() -> None:
    with load_left_behind(ReleasingTier) as (_, _, manager):
        drain(manager)
        assert [manager.status(one, R1) for one in keys(1, 2)] == [ABSENT, ABSENT]
