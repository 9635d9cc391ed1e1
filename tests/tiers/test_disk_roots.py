"""Roots that fail and come back: the others serve meanwhile, and no restart is needed."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from pathlib import Path

import pytest
from disk_harness import Disk, index_is_written, keys_of, present, roots_are_checked
from faulty_calls import FailingPlaces

from tiering.errors import PermanentTierError
from tiers.disk.tier import DiskTier


@pytest.fixture
def system(disk: Disk) -> FailingPlaces:
    disk.system = system = FailingPlaces()
    return system


@pytest.fixture
def two_roots(disk: Disk) -> dict[str, object]:
    return {"root_dirs": [disk.root / "a", disk.root / "b"]}


async def load_until_checked(disk: Disk, tier: DiskTier, *numbers: int) -> None:
    """Load again and again, as requests do, until a failing root is taken out."""
    for _ in range(4):
        await disk.load(tier, *numbers)
        disk.clock.now += 10
        await roots_are_checked(tier)


def test_a_root_that_returns_nothing_is_taken_out_and_comes_back(
    disk: Disk, system: FailingPlaces, two_roots: dict[str, object]
) -> None:
    async def scenario() -> None:
        async with disk.opened(20, **two_roots) as tier:
            assert all(await disk.store(tier, *range(20)))
            await index_is_written(tier)
            system.failing[disk.root / "b"] = errno.EIO
            await load_until_checked(disk, tier, *range(20))
            left = await present(tier)
            assert len(left) == 10
            assert tier.counters.roots_lost == 1
            assert sorted(disk.evicted) == sorted(set(keys_of(*range(20))) - set(keys_of(*left)))
            assert all(await disk.load(tier, *left))
            assert await disk.store(tier, *range(30, 40)) == [True] * 10, "the other root serves"
            assert sorted(await present(tier)) == list(range(30, 40))
            assert all(await disk.load(tier, *range(30, 40)))

            disk.clock.now += 20
            await roots_are_checked(tier)
            assert tier.counters.roots_back == 0, "it fails still"
            del system.failing[disk.root / "b"]
            disk.clock.now += 20
            await roots_are_checked(tier)
            assert tier.counters.roots_back == 1
            assert set(await present(tier)) == set(range(30, 40)) | (set(range(20)) - set(left))
            assert all(await disk.load(tier, *await present(tier)))
            assert all(await disk.store(tier, *range(40, 60)))
        async with disk.opened(20, **two_roots) as tier:
            assert sorted(await present(tier)) == list(range(40, 60))

    asyncio.run(scenario())


def test_the_last_root_that_is_left_is_asked_on(disk: Disk, system: FailingPlaces) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
            system.failing[disk.root] = errno.EIO
            await load_until_checked(disk, tier, *[1, 2] * 5)
            assert await disk.store(tier, 3) == [False]
            system.failing.clear()
            assert await disk.load(tier, 1, 2) == [True, True]
            disk.clock.now += 20
            assert await disk.store(tier, 3) == [True]
            assert disk.evicted == []

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EIO])
def test_a_root_that_takes_no_writes_serves_reads(
    disk: Disk, system: FailingPlaces, two_roots: dict[str, object], code: int
) -> None:
    async def scenario() -> None:
        async with disk.opened(20, **two_roots) as tier:
            assert all(await disk.store(tier, *range(20)))
            system.failing_writes[disk.root / "a"] = code
            first = (await disk.store(tier, *range(30, 40))).count(True)
            assert first == 5
            await roots_are_checked(tier)
            assert tier.counters.roots_read_only == 1
            for number in range(40, 60):
                assert await disk.store(tier, number) == [True]
            kept = await present(tier)
            assert all(await disk.load(tier, *kept))
            assert set(kept) == set(range(50, 60)) | (set(kept) & set(range(20)))
            assert len(kept) == 15
            assert tier.counters.write_errors == 5

            system.failing_writes.clear()
            disk.clock.now += 20
            await roots_are_checked(tier)
            assert tier.counters.roots_back == 1
            assert all(await disk.store(tier, *range(100, 120)))
            assert sorted(await present(tier)) == list(range(100, 120))
        async with disk.opened(20, **two_roots) as tier:
            assert all(await disk.load(tier, *range(100, 120)))

    asyncio.run(scenario())


@pytest.mark.parametrize("others", [0, 1])
def test_a_vanished_directory_is_made_again(disk: Disk, others: int) -> None:
    roots = [disk.root / "a", disk.root / "b"][: 1 + others]

    async def scenario() -> None:
        async with disk.opened(10, root_dirs=roots) as tier:
            assert all(await disk.store(tier, *range(10)))
            shutil.rmtree(disk.root / "a")
            await disk.store(tier, 20, 21)
            await index_is_written(tier)
            await roots_are_checked(tier)
            assert tier.counters.roots_lost == 1
            left = await present(tier)
            assert len(left) == 5 * others
            assert all(await disk.load(tier, *left))
            disk.clock.now += 20
            await roots_are_checked(tier)
            assert all(await disk.store(tier, *range(30, 40)))
            assert all(await disk.load(tier, *range(30, 40)))
        async with disk.opened(10, root_dirs=roots) as tier:
            assert sorted(await present(tier)) == list(range(30, 40))

    asyncio.run(scenario())


def test_a_root_that_is_dead_at_the_start_is_left_out(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    disk.root.mkdir()
    (disk.root / "a").write_text("a file where the directory should be")
    settings = {"root_dirs": [disk.root / "a", disk.root / "b"]}

    async def scenario() -> None:
        with pytest.raises(PermanentTierError, match="Not a directory"):
            await disk.make(20, recover="strict", **settings).open()
        with pytest.raises(PermanentTierError, match="Not a directory"):
            await disk.make(20, root_dirs=[disk.root / "a"]).open()
        async with disk.opened(20, **settings) as tier:
            assert "1 of 2 roots usable" in tier.describe()
            assert (await disk.store(tier, *range(20))).count(True) == 10
            (disk.root / "a").unlink()
            disk.clock.now += 20
            await roots_are_checked(tier)
            assert "roots usable" not in tier.describe()
            assert all(await disk.store(tier, *range(20)))
            assert all(await disk.load(tier, *range(20)))

    asyncio.run(scenario())
    assert sum("is left out" in record.message for record in caplog.records) == 2, "one line per tier"


def test_a_bad_sector_is_given_up_and_the_rest_goes_on(disk: Disk, system: FailingPlaces) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2, 3, 4)
            system.bad_sector = ("slab-000000.kv", disk.offset_of(3) + 4096)
            for _ in range(2):
                assert await disk.load(tier, 1, 2, 3, 4) == [True, True, False, True]
                await roots_are_checked(tier)
            assert tier.contains(keys_of(3)[0]), "it may have been a hiccup"
            await disk.load(tier, 3)
            await roots_are_checked(tier)
            assert disk.evicted == keys_of(3)
            assert tier.counters.bad_slots == 1
            for number in range(10, 30):
                assert await disk.store(tier, number) == [True], "the bad slot is never used again"
            assert await present(tier) == [27, 28, 29]
            assert tier.counters.write_errors == 0

    asyncio.run(scenario())


def test_a_slot_that_cannot_be_written_is_given_up(disk: Disk, system: FailingPlaces) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            system.bad_sector = ("slab-000000.kv", disk.slot_bytes + 100)
            answers = []
            for number in range(40):
                answers += await disk.store(tier, number)
                await roots_are_checked(tier)
            assert answers.count(False) == tier.counters.write_errors == 3
            assert tier.counters.bad_slots == 1
            assert await present(tier) == [37, 38, 39]

    asyncio.run(scenario())


def test_tc_34_a_full_disk_takes_chunks_again_once_there_is_space(disk: Disk, system: FailingPlaces) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    async def scenario() -> None:
        allocate = system.allocate
        async with disk.opened(8) as tier:
            system.allocate = full  # type: ignore[method-assign]
            assert await disk.store(tier, 1, 2) == [False, False]
            system.allocate = allocate  # type: ignore[method-assign]
            assert await disk.store(tier, 1, 2) == [False, False], "a full disk is not asked at once again"
            disk.clock.now += 20
            assert await disk.store(tier, 1, 2) == [True, True]
            assert await disk.load(tier, 1, 2) == [True, True]

    asyncio.run(scenario())


def test_a_clock_that_goes_back_makes_nothing_old_win(disk: Disk, system: FailingPlaces) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2)
            await tier.delete(keys_of(1))
        system.now //= 2
        async with disk.opened(4) as tier:
            await disk.store(tier, 3)
            await tier.delete(keys_of(2, 3))
            await disk.store(tier, 3, 2)
        for path in disk.directory.glob("index.*"):
            path.unlink()
        async with disk.opened(4) as tier:
            found = await present(tier)
            assert {2, 3} <= set(found)
            assert all(await disk.load(tier, *found))

    asyncio.run(scenario())


def test_a_failure_that_repeats_is_one_line_a_minute(
    disk: Disk, system: FailingPlaces, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
            system.failing[disk.root] = errno.EIO
            for _ in range(100):
                await disk.load(tier, 1)
            disk.clock.now += 61
            await disk.load(tier, 1)
            await roots_are_checked(tier)
            system.failing.clear()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    lines = [record.message for record in caplog.records if "could not be read" in record.message]
    assert len(lines) == 2
    assert "(and 99 more since the last such line)" in lines[1]


def test_tc_41_foreign_files_are_left_alone(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
        foreign = {"slab-x.kv": b"not a number", "notes.txt": b"mine", "index.old.journal": b"?"}
        for name, data in foreign.items():
            (disk.directory / name).write_bytes(data)
        async with disk.opened() as tier:
            assert await disk.load(tier, 1) == [True]
        assert (disk.directory / "slab-x.kv").read_bytes() == foreign["slab-x.kv"]
        assert (disk.directory / "notes.txt").read_bytes() == foreign["notes.txt"]

    asyncio.run(scenario())


def test_the_owner_of_another_root_is_named(disk: Disk, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with disk.opened(root_dirs=[tmp_path / "b"]):
            with pytest.raises(PermanentTierError, match="in use by process"):
                await disk.make(root_dirs=[tmp_path / "a", tmp_path / "b"]).open()

    asyncio.run(scenario())
