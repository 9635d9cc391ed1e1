"""What a request sees of objects that are damaged, or shared with another engine, or only partly stored."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from shelf_tier import ShelfTier
from small_engine import NUM_ROWS, ROW_BYTES, Engine, keys

from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus
from tiering.testing import MemoryTierConfig, drain, key_pattern
from tiering.tier import TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.header import PAGE_BYTES
from tiers.disk.tier import DiskTier

READY, ABSENT = LookupStatus.READY, LookupStatus.ABSENT


def shelf(place: Path) -> Engine:
    return Engine(inner=lambda context: ShelfTier(MemoryTierConfig(), context, place))


def objects_of(engine: Engine) -> dict[OffloadKey, bytes]:
    tier = engine.tier.inner
    assert isinstance(tier, ShelfTier)
    return tier.objects


def stats_of(engine: Engine) -> dict[str, int]:
    return dict(engine.manager.get_stats()["tiers"]["faulty"])


def stored_keys(engine: Engine) -> list[OffloadKey]:
    events = [event for event in engine.manager.take_events() if event.tier == "faulty" and not event.removed]
    return [key for event in events for key in event.keys]


@pytest.mark.parametrize("length", [2 * ROW_BYTES, ROW_BYTES + 1, ROW_BYTES - 1, 0])
def test_tc_01_an_object_of_the_wrong_length_is_never_a_hit(length: int, tmp_path: Path) -> None:
    engine = shelf(tmp_path)
    engine.store(1, 2)
    drain(engine.manager)
    engine.manager.reset_cache()
    (damaged,) = keys(1)
    objects_of(engine)[damaged] = key_pattern(damaged, length).tobytes()
    engine.rows.array[:] = 0xC5
    assert engine.statuses(1) == [ABSENT]
    assert stats_of(engine)["load_failures"] == 1
    assert (engine.rows.array == 0xC5).all(axis=1).sum() >= NUM_ROWS - 1, "a neighbouring row was written"
    engine.store(1)
    drain(engine.manager)
    engine.manager.reset_cache()
    assert engine.statuses(1, 2) == [READY, READY]
    engine.close()


def test_tc_02_a_flipped_byte_costs_its_chunk_only(tmp_path: Path) -> None:
    config = DiskConfig.model_validate({"type": "disk", "root_dirs": [tmp_path], "capacity": "1MiB"})
    engine = Engine(inner=lambda context: DiskTier(config, context))
    engine.store(1, 2, 3, 4)
    drain(engine.manager)
    engine.manager.reset_cache()
    (slab,) = tmp_path.rglob("slab-*")
    data = bytearray(slab.read_bytes())
    data[data.index(keys(2)[0]) // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES + 77] ^= 1
    slab.write_bytes(data)
    assert engine.statuses(1, 2, 3, 4) == [READY, ABSENT, READY, READY]
    assert stats_of(engine)["load_failures"] == 1
    assert stats_of(engine)["loaded_chunks"] == 3
    engine.close()


def test_tc_29_chunks_that_another_engine_has_stored_do_not_fail_a_store(tmp_path: Path) -> None:
    one, other = shelf(tmp_path), shelf(tmp_path)
    other.store(2, 4)
    drain(other.manager)
    one.store(1, 2, 3, 4)
    drain(one.manager)
    assert stats_of(one)["store_failures"] == 0
    assert sorted(stored_keys(one)) == keys(1, 2, 3, 4)
    for engine in (one, other):
        engine.manager.reset_cache()
        assert engine.statuses(1, 2, 3, 4) == [READY] * 4
        engine.close()


class RefusesOnce(ShelfTier):
    """One chunk of a batch cannot be written, the first time that it is offered."""

    refused: OffloadKey | None = keys(2)[0]

    async def store(self, keys: list[OffloadKey], rows: list[memoryview]) -> list[bool]:  # type: ignore[override]
        is_taken = [key != self.refused for key in keys]
        self.refused = None
        taken = list(itertools.compress(keys, is_taken))
        assert all(await super().store(taken, list(itertools.compress(rows, is_taken))))
        return is_taken


def test_tc_30_one_failed_chunk_of_a_store_fails_no_other(tmp_path: Path) -> None:
    def make(context: TierContext) -> ShelfTier:
        return RefusesOnce(MemoryTierConfig(), context, tmp_path)

    engine = Engine(inner=make)
    engine.store(1, 2, 3, 4, 5)
    drain(engine.manager)
    assert sorted(stored_keys(engine)) == keys(1, 3, 4, 5)
    assert stats_of(engine)["store_failures"] == 1
    engine.manager.reset_cache()
    assert engine.statuses(2) == [ABSENT]
    engine.store(2)
    drain(engine.manager)
    assert stored_keys(engine) == keys(2)
    engine.manager.reset_cache()
    assert engine.statuses(1, 2, 3, 4, 5) == [READY] * 5
    engine.close()
