"""Which chunks stay: recency, capacity, pins, and the accounting of slots."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from disk_harness import Disk, index_is_written, key_of, keys_of, present, rows_for

from tiering.errors import ConfigError
from tiering.keys import OffloadKey
from tiers.disk.index_columns import IndexColumns
from tiers.disk.slots import IndexEntry, SlotTable


def test_recency_after_stores_loads_and_touches(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(8) as tier:
            await disk.store(tier, 1, 2, 3)
            assert await present(tier) == [3, 2, 1]
            await disk.store(tier, 4, 2)
            assert await present(tier) == [3, 1, 2, 4]
            await disk.load(tier, 3, 9, 1)
            assert await present(tier) == [2, 4, 1, 3]
            tier.touch(keys_of(4, 9, 2))
            assert await present(tier) == [1, 3, 4, 2]

    asyncio.run(scenario())


def test_the_least_recent_chunks_make_room(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2, 3, 4)
            tier.touch([key_of(4)])
            assert await disk.store(tier, 5, 6) == [True, True]
            assert disk.evicted == keys_of(3, 2)
            assert tier.counters.evicted == 2
            assert await disk.load(tier, 1, 2, 3, 4, 5, 6) == [True, False, False, True, True, True]

    asyncio.run(scenario())


def test_a_call_larger_than_the_tier_keeps_its_head(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            assert await disk.store(tier, *range(6)) == [True] * 4 + [False] * 2
            assert await disk.store(tier, 8, 1, 9, 3) == [True] * 4
            assert sorted(await present(tier)) == [1, 3, 8, 9]
            assert await disk.store(tier, 1, 3, 8, 9, 10) == [True] * 4 + [False]
            assert tier.counters.declined == 3

    asyncio.run(scenario())


def test_tc_11_a_slot_being_read_is_not_taken(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    reading, go_on = threading.Event(), threading.Event()

    def slow(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        reading.set()
        assert go_on.wait(20)
        return preadv(fd, buffers, offset)

    async def scenario() -> None:
        async with disk.opened(2) as tier:
            await disk.store(tier, 1, 2)
            monkeypatch.setattr(os, "preadv", slow)
            load = asyncio.create_task(disk.load(tier, 1, 2))
            await asyncio.to_thread(reading.wait, 20)
            assert await disk.store(tier, 3) == [False]
            await tier.delete([key_of(1)])
            assert await disk.store(tier, 3) == [False]
            go_on.set()
            assert await load == [True, True]
            assert await disk.store(tier, 3) == [True]
            assert await disk.load(tier, 1, 2, 3) == [False, True, True]

    asyncio.run(scenario())


def test_tc_11_a_removals_of_every_kind_give_their_slots_back(disk: Disk) -> None:
    """Capacity 20; ten chunks each go by delete and by failed load; there is room for twenty others."""

    async def scenario() -> None:
        async with disk.opened(20) as tier:
            await disk.store(tier, *range(20))
            await tier.delete(keys_of(*range(10), 77))
            for number in range(10, 20):
                disk.overwrite(disk.offset_of(number) + 4096, b"?")
            assert await disk.load(tier, *range(20)) == [False] * 20
            assert disk.evicted == keys_of(*range(20))
            assert (await tier.usage()).used_bytes == 0
            assert await disk.store(tier, *range(100, 120)) == [True] * 20
            assert tier.counters.evicted == 0
            assert disk.slab_bytes_on_disk() == 20 * disk.slot_bytes

    asyncio.run(scenario())


def test_tc_11_a_chunks_unlinked_from_outside_give_their_slots_back(disk: Disk) -> None:
    """Two of the five slabs are removed between two runs: as many chunks are gone, and as many others find room."""
    settings = {"slab_bytes": 4 * disk.slot_bytes}

    async def scenario() -> None:
        async with disk.opened(20, **settings) as tier:
            await disk.store(tier, *range(20))
        for slab in disk.slabs()[1:3]:
            slab.unlink()
        async with disk.opened(20, **settings) as tier:
            assert (await tier.usage()).num_chunks == 12
            assert all(await disk.store(tier, *range(100, 108)))
            assert tier.counters.evicted == 0
            assert disk.slab_bytes_on_disk() == (await tier.usage()).used_bytes == 20 * disk.slot_bytes
            assert all(await disk.load(tier, *await present(tier)))

    asyncio.run(scenario())


def test_tc_11_b_capacity_counts_what_a_killed_run_left(disk: Disk) -> None:
    async def scenario() -> None:
        killed = disk.make(20)
        await killed.open()
        await disk.store(killed, *range(15))
        await index_is_written(killed)
        killed._roots.release()  # what the end of a process does
        async with disk.opened(20) as tier:
            assert (await tier.usage()).num_chunks == 15
            assert all(await disk.store(tier, *range(100, 110)))
            assert (await tier.usage()).num_chunks == 20
            assert disk.slab_bytes_on_disk() == 20 * disk.slot_bytes

    asyncio.run(scenario())


def test_tc_11_b_capacity_counts_what_an_earlier_run_left(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(20) as tier:
            await disk.store(tier, *range(15))
        async with disk.opened(20) as tier:
            assert (await tier.usage()).num_chunks == 15
            await disk.store(tier, *range(100, 110))
            assert (await tier.usage()).num_chunks == 20
            assert tier.counters.evicted == 5
        async with disk.opened(6) as tier:
            assert (await tier.usage()).num_chunks == 6
            assert disk.slab_bytes_on_disk() == 6 * disk.slot_bytes
            assert await disk.load(tier, *await present(tier)) == [True] * 6

    asyncio.run(scenario())


def test_tc_11_c_many_writers_never_exceed_the_capacity(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(20) as tier:
            await asyncio.gather(*(disk.store(tier, *range(start, start + 13)) for start in range(0, 104, 13)))
            assert disk.slab_bytes_on_disk() <= 20 * disk.slot_bytes
            usage = await tier.usage()
            assert usage.used_bytes <= (usage.capacity_bytes or 0) == 20 * disk.slot_bytes
            numbers = await present(tier)
            assert await disk.load(tier, *numbers) == [True] * len(numbers)

    asyncio.run(scenario())


def test_less_than_a_slot_per_root_is_refused(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "root")
    with pytest.raises(ConfigError, match=r"capacity 24575 is too small.*12288"):
        disk.make(root_dirs=[tmp_path / "a", tmp_path / "b"], capacity=2 * disk.slot_bytes - 1)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_readable_through_neighbouring_slots_after_fragmentation(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(16) as tier:
            await disk.store(tier, *range(16))
            await tier.delete(keys_of(*range(0, 16, 2)))
            keys = keys_of(*range(50, 58))
            assert all(await tier.store(keys, rows_for(keys)))
            assert all(await disk.load(tier, *range(50, 58), *range(1, 16, 2)))

    asyncio.run(scenario())


def taken(table: SlotTable, count: int, **excluded: set[int]) -> tuple[list[int], list[OffloadKey]]:
    slots, victims = table.take(count, **excluded)
    return slots, list(victims.values())


def restored(table: SlotTable, root: int, *entries: IndexEntry) -> SlotTable:
    """Put entries, with slots numbered within ``root``, into a table."""
    slots, generations = (np.array([entry[at] for entry in entries], np.uint64) for at in (1, 2))
    table.restore(root, IndexColumns([entry.key for entry in entries], slots, generations, generations))
    return table


def test_a_full_root_gives_no_fresh_slots() -> None:
    table = SlotTable(8, num_roots=2)
    assert taken(table, 4) == ([0, 1, 2, 3], [])
    table.insert([IndexEntry(key_of(1), 0, 1), IndexEntry(key_of(2), 1, 2)])
    table.give_back_unbacked(2)
    table.give_back(3)
    assert taken(table, 3, full_roots={0}) == ([3, 5, 7], [])
    assert taken(table, 3, full_roots={0}) == ([0, 1], keys_of(1, 2))
    assert taken(table, 9) == ([2, 4, 6], [])
    assert taken(table, 9) == ([], [])


def test_an_unusable_root_gives_and_loses_nothing() -> None:
    table = SlotTable(8, num_roots=2)
    slots, _ = table.take(6)
    table.insert([IndexEntry(key_of(slot), slot, slot + 1) for slot in slots])
    assert taken(table, 9, unusable_roots={0}) == ([1, 3, 5, 7], keys_of(1, 3, 5))
    assert taken(table, 9, unusable_roots={0, 1}) == ([], [])
    assert table.keys() == keys_of(0, 2, 4)


def test_a_lost_root_is_forgotten_until_it_is_restored() -> None:
    table = SlotTable(8, num_roots=2)
    slots, _ = table.take(6)
    table.insert([IndexEntry(key_of(slot), slot, slot + 1) for slot in slots[:4]])
    pinned = table.pin([key_of(2)])
    assert table.lose(0) == keys_of(0, 2)
    late = table.insert([IndexEntry(key_of(4), 4, 9)])
    assert late == [], "a write that ends after its root is lost counts for nothing"
    table.give_back(4)
    table.unpin(pinned)
    assert taken(table, 9) == ([1, 3, 7], keys_of(1, 3))
    table.insert([IndexEntry(key_of(1), 1, 20)])
    restored(table, 0, IndexEntry(key_of(1), 2, 10), IndexEntry(key_of(2), 1, 3))
    assert table.keys() == keys_of(2, 1), "what was found again goes before what is here"
    assert table.entry(key_of(1)) == IndexEntry(key_of(1), 1, 20), "the newer write of two counts"
    assert taken(table, 9)[0] == [0, 1, 2, 4, 6]


def test_every_slot_is_handed_out_once_after_recovery() -> None:
    table = restored(SlotTable(11, num_roots=3), 1, *(IndexEntry(key_of(slot), slot // 3, slot) for slot in (4, 1)))
    restored(table, 0, IndexEntry(key_of(6), 2, 6))
    restored(table, 2)
    assert taken(table, 11) == ([*range(11)], keys_of(6, 4, 1))


def test_generations_are_the_time_of_day_and_never_go_back() -> None:
    now = 1_000_000
    table = restored(SlotTable(4, wall_microseconds=lambda: now), 0, IndexEntry(key_of(1), 2, 40))
    assert table.new_generations(2) == range(1_000_000, 1_000_002)
    now = 77
    assert table.new_generations(3) == range(1_000_002, 1_000_005)
    now = 2_000_000
    assert table.new_generations(1) == range(2_000_000, 2_000_001)
