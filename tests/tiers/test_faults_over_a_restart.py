"""Faults that begin in one run of a disk tier and are met again by the next."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import mounts
import pytest
from disk_harness import Disk, index_is_written, keys_of, present, roots_are_checked
from faulty_calls import FailingPlaces
from slots_on_disk import settings

from tiering.errors import PermanentTierError


def test_a_device_that_goes_away(tmp_path: Path) -> None:
    """The server of the file system is killed: every call fails from then on, `close` of descriptors too."""
    num_descriptors = len(os.listdir("/proc/self/fd"))
    with mounts.faulty(tmp_path / "faulty") as faulty:

        async def scenario() -> None:
            disk = Disk(faulty.path)
            async with disk.opened() as tier:
                await disk.store(tier, 1, 2)
                faulty.kill()
                for _ in range(20):
                    assert await disk.load(tier, 1, 2) == [False, False]
                    assert await disk.store(tier, 3) == [False]
            with pytest.raises(PermanentTierError, match="cannot be opened"):
                await disk.make().open()

        asyncio.run(scenario())
    assert len(os.listdir("/proc/self/fd")) == num_descriptors


def fill_up(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while file.write(bytes(512)):
            pass


def test_tc_34_a_tier_that_filled_its_file_system_opens_again(tmp_path: Path) -> None:
    """The index did not fit any more: no chunk is lost for that, and a store makes room as ever."""

    async def scenario(root: Path) -> None:
        disk = Disk(root, 5000)
        async with disk.opened(1000) as tier:
            await disk.store(tier, *range(400))
            kept = await present(tier)
            assert len(kept) > 100
        fill_up(root / "ballast")
        async with disk.opened(1000) as tier:
            assert set(await present(tier)) == set(kept)
            assert all(await disk.load(tier, *kept))
            await disk.store(tier, 500)  # finds out that the disk is full
            assert await disk.store(tier, 501) == [True], "the least recent makes room"

    with mounts.on_loop_device(tmp_path / "small", "ext4", 3 * 2**20) as root:
        asyncio.run(scenario(root))


def test_an_index_that_ends_early_is_not_left_behind(disk: Disk) -> None:
    """A run killed after its journal could not be written: the next one finds what it stored before and after that."""

    async def scenario() -> None:
        disk.system = system = FailingPlaces()
        tier = disk.make(16)
        await tier.open()
        await disk.store(tier, *range(4))
        await index_is_written(tier)
        system.failing_writes = dict.fromkeys(disk.directory.glob("*.journal"), errno.ENOSPC)
        await disk.store(tier, *range(4, 8))
        await index_is_written(tier)
        assert list(disk.directory.glob("index.*")) == []
        system.failing_writes = {}
        await disk.store(tier, *range(8, 12))
        await roots_are_checked(tier)
        tier._roots.release()  # what the end of a process does
        async with disk.opened(16) as tier:
            assert await present(tier) == list(range(12))
            assert all(await disk.load(tier, *range(12)))

    asyncio.run(scenario())


def test_damaged_headers_are_counted_where_there_is_no_index(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with disk.opened(16, **settings(disk)) as tier:
            for number in range(12):
                await disk.store(tier, number)
        for number in (3, 5):
            disk.overwrite(disk.offset_of(number) + 100, b"?")
        for path in disk.directory.glob("index.*"):
            path.unlink()
        with pytest.raises(PermanentTierError, match=f"2 header pages of {disk.directory} are damaged"):
            await disk.make(16, recover="strict", **settings(disk)).open()
        async with disk.opened(16, **settings(disk)) as tier:
            assert tier.counters.damaged_headers == 2
            assert set(await present(tier)) == set(range(12)) - {3, 5}

    asyncio.run(scenario())
    assert "2 header pages" in caplog.text


def test_corrupt_chunks_are_reported_besides_evicted_ones(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2, 3)
            disk.overwrite(disk.offset_of(2) + 5000, b"?")
            await disk.load(tier, 1, 2, 3)
            assert disk.corrupt == disk.evicted == keys_of(2)
            await tier.delete(keys_of(1))
            assert disk.corrupt == keys_of(2)
            assert disk.evicted == keys_of(2, 1)

    asyncio.run(scenario())


def test_chunks_that_come_back_with_a_disk_are_reported(tmp_path: Path) -> None:
    """A chunk stored elsewhere meanwhile was never away, and is not reported."""
    disk = Disk(tmp_path / "a")
    disk.system = system = FailingPlaces()
    roots = [tmp_path / "a", tmp_path / "b"]

    async def scenario() -> None:
        async with disk.opened(16, root_dirs=roots) as tier:
            await disk.store(tier, *range(8))
            system.failing = {roots[1]: errno.EIO}
            for _ in range(3):
                disk.clock.now += 20
                await disk.load(tier, *range(8))
                await roots_are_checked(tier)
            lost = [number for number in range(8) if keys_of(number)[0] in disk.evicted]
            assert len(lost) == 4
            await disk.store(tier, lost[0])
            assert disk.back == []
            system.failing = {}
            disk.clock.now += 60
            await roots_are_checked(tier)
            assert set(disk.back) == set(keys_of(*lost[1:]))
            assert all(await disk.load(tier, *range(8)))

    asyncio.run(scenario())
