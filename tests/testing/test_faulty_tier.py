"""Faults by schedule: what each one does, that the core contains those that it can, and how the others are seen."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path

import pytest
from shelf_tier import ShelfTests
from small_engine import Engine, keys

from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus
from tiering.request import ReqContext
from tiering.testing import (
    CONTAINED_FAULTS,
    Fault,
    FaultSchedule,
    FaultyTier,
    GuardedRows,
    drain,
)
from tiering.tier import Tier, TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.tier import DiskTier


class TestAFaultyTierWithoutFaults(ShelfTests):
    """The wrapper hides nothing of the tier inside."""

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        return FaultyTier(
            super().make_tier(place, context, max_chunks), FaultSchedule.of_everything(1, 1.0), is_on=False
        )

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        return super().read_object(inside(tier), key)

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        super().write_object(inside(tier), key, payload)

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        super().remove_object(inside(tier), key)

    def break_storage(self, tier: Tier) -> None:
        super().break_storage(inside(tier))

    def mend_storage(self, tier: Tier) -> None:
        super().mend_storage(inside(tier))


def inside(tier: Tier) -> Tier:
    assert isinstance(tier, FaultyTier)
    return tier.inner


def test_a_schedule_is_its_seed() -> None:
    drawn = [[FaultSchedule.of_everything(seed, 0.3).fault_of(n) for n in range(3_000)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == {None, *CONTAINED_FAULTS}
    assert 800 < 3_000 - drawn[0].count(None) < 1_000
    certain = FaultSchedule(1, {Fault.DROP: 1.0}, at={3: Fault.STUCK})
    assert [certain.fault_of(n) for n in range(5)] == [Fault.DROP] * 3 + [Fault.STUCK, Fault.DROP]


@pytest.mark.parametrize("fault", CONTAINED_FAULTS)
def test_a_fault_costs_misses_and_nothing_else(fault: Fault) -> None:
    engine = Engine(FaultSchedule(1, {fault: 1.0}, delay_seconds=0.001))
    engine.store(1, 2, 3)
    drain(engine.manager)
    engine.manager.reset_cache()
    engine.tier.is_on = True
    engine.statuses(1, 2, 3)
    engine.store(4, 5)
    assert engine.tier.faults[fault] >= 1
    engine.tier.is_on = False
    engine.tier.release()
    drain(engine.manager)
    engine.manager.reset_cache()
    assert engine.statuses(1, 2, 3) == [LookupStatus.READY] * 3, "the next request has all of it"
    engine.close()


def test_a_late_write_never_meets_another_chunk() -> None:
    engine = Engine(FaultSchedule(1, {Fault.LATE_WRITE: 1.0}))
    engine.store(1, 2, 3)
    drain(engine.manager)
    engine.manager.reset_cache()
    engine.tier.is_on = True
    assert engine.statuses(1, 2, 3) == [LookupStatus.ABSENT] * 3
    assert engine.manager.prepare_store(keys(11, 12, 13, 14), ReqContext()) is None, "three rows may still be written"
    engine.tier.is_on = False
    engine.store(11, 12, 13)
    engine.tier.release()
    drain(engine.manager)
    assert engine.statuses(11, 12, 13) == [LookupStatus.READY] * 3
    engine.close()


def test_random_faults_of_every_kind() -> None:
    schedule = FaultSchedule.of_everything(7, 0.5, delay_seconds=0.001, stuck_seconds=0.002)
    engine = Engine(schedule)
    engine.tier.is_on = True
    for number in range(400):
        engine.store(number % 40)
        if number % 3 == 0:
            engine.manager.reset_cache()
        engine.now += 6.0 * (number % 11 == 0)
        engine.statuses((number * 7) % 40, (number * 11) % 40)
        drain(engine.manager)
    assert set(engine.tier.faults) == set(CONTAINED_FAULTS)
    engine.close()


def test_a_flipped_bit_is_seen_by_a_checksum_and_by_comparing(tmp_path: Path) -> None:
    class Lying(ShelfTests):
        def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
            return FaultyTier(super().make_tier(place, context, max_chunks), FaultSchedule(1, {Fault.FLIP: 1.0}))

    with pytest.raises(AssertionError, match="other bytes than its own"):
        Lying().test_hits_and_misses_mix_in_any_order(tmp_path)


def test_a_write_outside_is_seen_by_guards(tmp_path: Path) -> None:
    class Overrunning(ShelfTests):
        def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
            schedule = FaultSchedule(1, {Fault.WRITE_OUTSIDE: 1.0})
            return FaultyTier(super().make_tier(place, context, max_chunks), schedule)

    with pytest.raises(AssertionError):
        Overrunning().test_nothing_outside_of_a_row_is_written(tmp_path)
    rows = GuardedRows(2, 100)
    assert rows.num_guards_hit() == 0


def crash(root: Path, call_number: int) -> None:
    def make_disk(context: TierContext) -> Tier:
        return DiskTier(disk_config(root), context)

    engine = Engine(FaultSchedule(call_number, at={call_number: Fault.CRASH}), make_disk)
    engine.tier.is_on = True
    for number in range(0, 24, 2):
        engine.store(number, number + 1)
        engine.statuses(number)
        drain(engine.manager)


def disk_config(root: Path) -> DiskConfig:
    return DiskConfig.model_validate({"type": "disk", "root_dirs": [root], "capacity": "1MiB"})


@pytest.mark.parametrize("call_number", [0, 3, 7, 11])
def test_after_a_crash_each_chunk_is_whole_or_absent(call_number: int, tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=crash, args=(tmp_path, call_number))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    engine = Engine(FaultSchedule(), lambda context: DiskTier(disk_config(tmp_path), context))
    found = [engine.statuses(number)[0] for number in range(24)]
    assert set(found) <= {LookupStatus.READY, LookupStatus.ABSENT}
    assert found.count(LookupStatus.READY) <= 2 * (call_number + 1)
    engine.close()
