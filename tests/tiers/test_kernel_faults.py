"""A disk tier on real file systems that fill up or fail.

A fault costs misses and declined stores, each counted; nothing raises, no byte is wrong, and where the fault can end
the tier goes on without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import Callable
from pathlib import Path

import mounts
import pytest
from disk_harness import (
    Disk,
    present,
    roots_are_checked,
)

CHANGES = ("create", "mkdir", "setattr", "fallocate", "rename", "rename2", "unlink", "write")


SMALL = {
    "tmpfs": lambda place: mounts.tmpfs(place, "3m"),
    "ext4": lambda place: mounts.on_loop_device(place, "ext4", 3 * 2**20),
    "ext2, without preallocation": lambda place: mounts.on_loop_device(place, "ext2", 3 * 2**20),
}
Mount = Callable[[Path], contextlib.AbstractContextManager[Path]]


@pytest.mark.parametrize("mount", SMALL.values(), ids=SMALL)
def test_tc_34_a_full_file_system(tmp_path: Path, mount: Mount, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(root: Path) -> None:
        disk = Disk(root)
        ballast = root / "ballast"
        space = os.statvfs(root)
        ballast.write_bytes(bytes(space.f_bavail * space.f_frsize - 2**20))
        async with disk.opened(1000) as tier:
            for number in range(150):
                await asyncio.gather(disk.store(tier, number), disk.load(tier, *await present(tier)))
            num_kept = len(await present(tier))
            assert 20 < num_kept < 130
            assert tier.counters.write_errors > 0
            assert all(await disk.load(tier, *await present(tier)))
            ballast.unlink()
            disk.clock.now += 60
            assert all(await disk.store(tier, *range(200, 240)))
            kept = await present(tier)
            assert len(kept) >= num_kept + 30
            assert all(await disk.load(tier, *kept))

    with mount(tmp_path / "small") as root:
        asyncio.run(scenario(root))
    assert len(caplog.records) < 5


@pytest.mark.parametrize("code", ["EIO", "EACCES", "ESTALE", "EMFILE"])
def test_tc_35_a_thousand_failed_reads_cost_no_chunk_and_no_descriptor(faulty: mounts.Faulty, code: str) -> None:
    async def scenario() -> None:
        disk = Disk(faulty.path)
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
            faulty.fail(read={"errno": code})
            num_descriptors = len(os.listdir("/proc/self/fd"))
            for _ in range(1000):
                assert await disk.load(tier, 1) == [False]
            await roots_are_checked(tier)
            assert len(os.listdir("/proc/self/fd")) < num_descriptors + 10, "a few may be open for the moment"
            assert tier.counters.read_errors == 1000
            faulty.fail()
            assert await disk.load(tier, 1, 2) == [True, True]
            assert disk.evicted == []

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    try:
        asyncio.run(scenario())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("o_direct", ["auto", "off"])
def test_one_bad_sector_costs_the_chunk_that_lies_there(faulty: mounts.Faulty, o_direct: str) -> None:
    async def scenario() -> None:
        disk = Disk(faulty.path)
        async with disk.opened(8, o_direct=o_direct) as tier:
            await disk.store(tier, *range(8))
            bad = disk.offset_of(5) + 4096
            sector = {"errno": "EIO", "from": bad, "to": bad + 512}
            faulty.fail(read=sector, write=sector)
            assert await disk.load(tier, *range(8)) == [number != 5 for number in range(8)]
            assert tier.counters.read_errors == 1
            assert (await disk.store(tier, *range(10, 18))).count(False) == 1
            assert tier.counters.write_errors == 1
            faulty.fail()
            assert all(await disk.store(tier, *range(10, 18)))
            assert all(await disk.load(tier, *range(10, 18)))

    asyncio.run(scenario())


@pytest.mark.parametrize("code", ["EIO", "EROFS", "ENOSPC", "EDQUOT", "EPERM"])
def test_writes_that_fail_for_a_while(faulty: mounts.Faulty, code: str, caplog: pytest.LogCaptureFixture) -> None:
    """Everything that changes the file system fails, the index files' own writes too."""

    async def scenario() -> None:
        disk = Disk(faulty.path)
        async with disk.opened(16, slab_bytes=4 * disk.slot_bytes, snapshot_every=10) as tier:
            assert all(await disk.store(tier, *range(6)))
            faulty.fail(**{operation: {"errno": code} for operation in CHANGES})
            for number in range(100, 150):
                assert await disk.store(tier, number) == [False]
                assert all(await disk.load(tier, *await present(tier)))
            assert tier.counters.write_errors + tier.counters.declined >= 50
            faulty.fail()
            disk.clock.now += 60
            assert all(await disk.store(tier, *range(200, 210)))
            kept = await present(tier)
            assert all(await disk.load(tier, *kept))
        async with disk.opened(16, slab_bytes=4 * disk.slot_bytes) as tier:
            assert sorted(await present(tier)) == sorted(kept)
            assert all(await disk.load(tier, *kept))

    asyncio.run(scenario())
    assert len(caplog.records) < 10
