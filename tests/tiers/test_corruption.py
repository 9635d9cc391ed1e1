"""Ten thousand flips of bits and a thousand harmed sectors in all files of a disk tier.

Whatever is damaged, every hit has the exact bytes, nothing raises, and exactly the chunks whose bytes are damaged are
lost and counted. Offsets are those of ``docs/disk-format.md``. Each trial draws from a seed of its own, named when it
fails.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import Image, first_difference, flip_bits, harm_sector
from disk_harness import Disk, index_is_written, key_of, present
from slots_on_disk import HEADER_BYTES, KEY_BYTES, Slot, assert_only_lost, newest, number_of, settings, slots_on_disk

from tiering.errors import PermanentTierError

Harm = Callable[[random.Random, bytes], bytes]

INDEX_START_BYTES = 48
RECORD = struct.Struct(f"<QHHIQQ{KEY_BYTES}s")
PUT = 1

ROW_BYTES = 5000  # of the 8192 bytes that rows take on disk, so that there are unused ones
NUM_SLOTS = 24
CHUNKS = range(22)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "root", ROW_BYTES)


def harm_slots(disk: Disk, draw: random.Random, slots: list[Slot]) -> set[int]:
    """Damage each of ``slots`` once; return the chunks of which a used byte has changed."""
    damaged = set()
    for slot in slots:
        with slot.path.open("r+b") as file:
            file.seek(slot.offset)
            before = file.read(disk.slot_bytes)
            after = (harm_sector if draw.random() < 1 / 11 else flip_bits)(draw, before)
            file.seek(slot.offset)
            file.write(after)
        used_bytes = HEADER_BYTES + disk.row_bytes
        if before[:used_bytes] != after[:used_bytes]:
            damaged.add(slot.number)
    return damaged


def test_slabs_damaged_while_the_tier_runs(disk: Disk) -> None:
    num_damages = 0

    async def scenario() -> None:
        nonlocal num_damages
        async with disk.opened(NUM_SLOTS, **settings(disk)) as tier:
            for trial in range(390):
                assert all(await disk.store(tier, *CHUNKS))
                live = newest(slots_on_disk(disk))
                corrupt_before = tier.counters.corrupt
                damaged = harm_slots(disk, random.Random(trial), list(live.values()))
                num_damages += len(live)
                await assert_only_lost(disk, tier, damaged, CHUNKS, f"seed {trial}")
                assert tier.counters.corrupt - corrupt_before == len(damaged), f"seed {trial}"
                assert (await tier.usage()).num_chunks == len(CHUNKS) - len(damaged)

    asyncio.run(scenario())
    assert num_damages == 8580
    assert len(disk.evicted) > num_damages / 2


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_slabs_damaged_between_two_runs(disk: Disk, index: str) -> None:
    async def fill() -> None:
        async with disk.opened(NUM_SLOTS, **settings(disk)) as tier:
            await disk.store(tier, *CHUNKS)

    async def check(trial: str, damaged: set[int]) -> None:
        async with disk.opened(NUM_SLOTS, **settings(disk)) as tier:
            found = set(await present(tier))
            await assert_only_lost(disk, tier, damaged, CHUNKS, trial)
            assert tier.counters.corrupt == len(found & damaged), trial
            assert index == "lost" or len(found) == len(CHUNKS), trial
            assert all(await disk.store(tier, *CHUNKS)), trial
            assert all(await disk.load(tier, *CHUNKS)), trial

    asyncio.run(fill())
    if index == "lost":
        for path in disk.directory.glob("index.*"):
            path.unlink()
    image = Image(disk.directory)
    slots = slots_on_disk(disk)
    for trial in range(30):
        image.put_back()
        damaged = harm_slots(disk, random.Random(trial), slots)
        asyncio.run(check(f"seed {trial}", damaged))


class CrashedTier:
    """What a killed tier left: a snapshot, a journal with stores, evictions and deletions, and slabs.

    Attributes:
        image: its files.
        snapshot, journal: the paths of its index files.
    """

    capacity = 40
    numbers = range(80)

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        asyncio.run(self._live())
        self.image.put_back()
        (self.snapshot,) = disk.directory.glob("index.snapshot")
        (self.journal,) = disk.directory.glob("index.*.journal")
        places = {(slot.path, slot.offset): slot.number for slot in slots_on_disk(disk)}
        self._holder = dict(enumerate(places[place] for place in sorted(places)))
        self._records = list(RECORD.iter_unpack(self.image.files[self.journal][INDEX_START_BYTES:]))
        assert {record[1] for record in self._records} == {1, 2}

    async def _live(self) -> None:
        disk = self.disk
        async with disk.opened(self.capacity, **settings(disk)) as tier:
            await disk.store(tier, *range(20))
        async with disk.opened(self.capacity, **settings(disk)) as tier:
            for number in range(20, 80):
                assert await disk.store(tier, number) == [True]
                if number % 10 == 5:
                    await tier.delete([key_of(number - 5)])
            await index_is_written(tier)
            self.image = Image(disk.directory)

    def expected(self, num_records: int) -> tuple[set[int], set[int]]:
        """Return the chunks that the index names when only so many records count, and those of them still there."""
        data = self.image.files[self.snapshot]
        (count,) = struct.unpack_from("<Q", data, 40)
        slots = struct.unpack_from(f"<{count}Q", data, INDEX_START_BYTES)
        keys = data[INDEX_START_BYTES + 18 * count : -8]
        slot_of = {number_of(keys[KEY_BYTES * i :][:KEY_BYTES]): slot for i, slot in enumerate(slots)}
        for _, kind, _, _, slot, _, key in self._records[:num_records]:
            slot_of.pop(number_of(key), None)
            if kind == PUT:
                slot_of = {number: other for number, other in slot_of.items() if other != slot}
                slot_of[number_of(key)] = slot
        return set(slot_of), {number for number, slot in slot_of.items() if self._holder[slot] == number}

    def expected_of_headers(self) -> set[int]:
        return set(self._holder.values())


@pytest.fixture
def crashed(disk: Disk) -> CrashedTier:
    return CrashedTier(disk)


async def check_recovery(crashed: CrashedTier, trial: str, in_index: set[int], there: set[int]) -> None:
    disk = crashed.disk
    async with disk.opened(crashed.capacity, **settings(disk)) as tier:
        assert set(await present(tier)) == in_index, trial
        lost = set(crashed.numbers) - there
        await assert_only_lost(disk, tier, lost, crashed.numbers, trial)
        assert tier.counters.corrupt == len(in_index - there), trial


async def refused_when_strict(disk: Disk, num_slots: int) -> bool:
    try:
        async with disk.opened(num_slots, recover="strict", **settings(disk)):
            return False
    except PermanentTierError:
        return True


def test_an_undamaged_index_gives_all_back(crashed: CrashedTier, caplog: pytest.LogCaptureFixture) -> None:
    in_index, there = crashed.expected(10**6)
    assert in_index == there
    assert len(there) > 30
    crashed.image.put_back()
    asyncio.run(check_recovery(crashed, "undamaged", in_index, there))
    assert caplog.records == []


@pytest.mark.parametrize("harm", [flip_bits, harm_sector])
@pytest.mark.parametrize("file", ["journal", "snapshot"])
def test_a_damaged_index_costs_what_it_no_longer_says(
    crashed: CrashedTier, file: str, harm: Harm, caplog: pytest.LogCaptureFixture
) -> None:
    path = getattr(crashed, file)
    before = crashed.image.files[path]
    for seed in range(400 if harm is flip_bits else 90):
        trial = f"{harm.__name__}, seed {seed}"
        after = harm(random.Random(seed), before)
        if after == before:
            continue
        crashed.image.put_back({path: after})
        if seed % 10 == 0:
            image = Image(crashed.disk.directory)
            assert asyncio.run(refused_when_strict(crashed.disk, crashed.capacity)), trial
            assert image.changes() <= {"owner.lock"}, trial
        if file == "journal":
            num_intact = max(0, first_difference(before, after) - INDEX_START_BYTES) // RECORD.size
            in_index, there = crashed.expected(num_intact)
        else:
            in_index = there = crashed.expected_of_headers()
        caplog.clear()
        asyncio.run(check_recovery(crashed, trial, in_index, there))
        assert [record.levelno for record in caplog.records] == [logging.WARNING], trial


@pytest.mark.parametrize("name", ["owner.lock", "namespace.json", "layout.json"])
def test_damage_in_the_small_files(disk: Disk, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A lock's text means nothing, a namespace's is for people; a layout that cannot be believed costs all chunks."""

    async def fill() -> None:
        async with disk.opened(NUM_SLOTS, **settings(disk)) as tier:
            await disk.store(tier, *CHUNKS)

    async def check(trial: str) -> bool:
        async with disk.opened(NUM_SLOTS, **settings(disk)) as tier:
            answers = await disk.load(tier, *CHUNKS)
            assert all(await disk.store(tier, *CHUNKS)), trial
            assert all(await disk.load(tier, *CHUNKS)), trial
        return all(answers)

    asyncio.run(fill())
    image = Image(disk.root)
    path = disk.directory / name
    for seed, harm in enumerate([flip_bits] * 100 + [harm_sector] * 10):
        trial = f"seed {seed}"
        after = harm(random.Random(seed), image.files[path])
        image.put_back({path: after})
        refused = asyncio.run(refused_when_strict(disk, NUM_SLOTS))
        assert refused == (name != "owner.lock" and after != image.files[path]), trial
        image.put_back({path: after})
        caplog.clear()
        kept_all = asyncio.run(check(trial))
        if name == "layout.json":
            assert kept_all or caplog.records or any(disk.root.glob("*.set-aside-0")), trial
        else:
            assert kept_all, trial
            assert caplog.records == [], trial
        if name != "owner.lock":
            assert json.loads(path.read_bytes()), trial
