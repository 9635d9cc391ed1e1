"""A disk tier whose files and directories are removed under it."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading

import pytest
from disk_harness import (
    Disk,
    index_is_written,
    roots_are_checked,
)

from tiers.disk.tier import DiskTier


async def it_notices_and_recovers(disk: Disk, tier: DiskTier) -> None:
    """Let the tier store something, which meets what is gone, and try again after a while what failed then."""
    await disk.store(tier, 1000)
    await index_is_written(tier)
    await roots_are_checked(tier)
    disk.clock.now += 60
    await roots_are_checked(tier)


async def holds_all_it_is_given(disk: Disk, tier: DiskTier, numbers: range) -> None:
    assert all(await disk.store(tier, *numbers))
    assert all(await disk.load(tier, *numbers))


def test_tc_42_a_directory_that_vanishes(disk: Disk) -> None:
    async def scenario() -> None:
        settings = {"slab_bytes": 4 * disk.slot_bytes, "snapshot_every": 5}
        async with disk.opened(16, **settings) as tier:
            await disk.store(tier, *range(6))
            shutil.rmtree(disk.root)
            for number in range(10, 40):
                await disk.store(tier, number)
                await disk.load(tier, *range(6), number)
            assert tier.counters.corrupt <= len(disk.evicted)
        async with disk.opened(16, **settings) as tier:
            assert all(await disk.store(tier, *range(16)))
            assert all(await disk.load(tier, *range(16)))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "vanishes", ["*", "*/*", "*/slab-*.kv", "*/*.journal", "*/index.snapshot", "*/*.json", "*/*.lock"]
)
@pytest.mark.parametrize("num_stored", [0, 4, 16])
def test_tc_42_what_vanished_while_nothing_was_going_on(disk: Disk, vanishes: str, num_stored: int) -> None:
    """It costs what fails meanwhile; after that, and after a restart, the tier holds all it is given."""
    settings = {"slab_bytes": 4 * disk.slot_bytes, "snapshot_every": 5}

    async def scenario() -> None:
        async with disk.opened(16, **settings) as tier:
            await disk.store(tier, *range(num_stored))
            await index_is_written(tier)
            for path in disk.root.glob(vanishes):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            await it_notices_and_recovers(disk, tier)
            await holds_all_it_is_given(disk, tier, range(200, 216))
        async with disk.opened(16, **settings) as tier:
            await disk.load(tier, *range(200, 216))
            await holds_all_it_is_given(disk, tier, range(300, 316))

    asyncio.run(scenario())


@pytest.mark.parametrize("folders_too", [False, True])
def test_tc_42_files_deleted_from_outside_all_the_time(disk: Disk, *, folders_too: bool) -> None:
    """Whoever cleans up there, every load is exact or a miss; once that ends the tier holds all it is given."""
    settings = {"slab_bytes": 8 * disk.slot_bytes, "snapshot_every": 20}
    done = threading.Event()

    def delete() -> None:
        draw = random.Random(3)
        while not done.is_set():
            paths = [path for path in disk.root.rglob("*") if path.is_file()]
            if paths:
                draw.choice(paths).unlink(missing_ok=True)
            if folders_too and draw.random() < 0.05:
                shutil.rmtree(disk.root, ignore_errors=True)

    async def client(tier: DiskTier, seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(60):
            await disk.store(tier, *draw.sample(range(100), 5))
            await disk.load(tier, *draw.sample(range(100), 5))

    async def scenario() -> None:
        async with disk.opened(64, **settings) as tier:
            deleter = threading.Thread(target=delete)
            deleter.start()
            try:
                await asyncio.gather(*(client(tier, seed) for seed in range(4)))
            finally:
                done.set()
                deleter.join()
            await it_notices_and_recovers(disk, tier)
            await holds_all_it_is_given(disk, tier, range(200, 264))
        async with disk.opened(64, **settings) as tier:
            await disk.load(tier, *range(264))
            await holds_all_it_is_given(disk, tier, range(300, 364))

    asyncio.run(scenario())
