"""A disk tier on real file systems that fill up, fail, turn read-only, vanish, or can do less than most.

A fault costs misses and declined stores, each counted; nothing raises, no byte is wrong, and where the fault can end
the tier goes on without a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import resource
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import mounts
import pytest
from disk_harness import (
    Disk,
    assert_untouched_around,
    blank_rows,
    bytes_of,
    keys_of,
    present,
    roots_are_checked,
    rows_for,
)

from tiering.errors import PermanentTierError
from tiers.disk.tier import DiskTier

CHANGES = ("create", "mkdir", "setattr", "fallocate", "rename", "rename2", "unlink", "write")


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[mounts.Faulty]:
    with mounts.faulty(tmp_path / "faulty") as file_system:
        yield file_system


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


def turn_read_only(root: Path) -> None:
    """Let ext4 believe that it met an error, upon which it takes no more writes."""
    device = os.stat(root).st_dev
    loop = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    try:
        Path(f"/sys/fs/ext4/{loop}/trigger_fs_error").write_text("by a test")
    except OSError as error:
        pytest.skip(f"needs an ext4 that can be told to fail: {error}")


def shut_down(root: Path) -> None:
    """Let ext4 refuse everything from now on, as after the loss of its device."""
    fd = os.open(root, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, 0x8004587D, struct.pack("I", 2))
    except OSError as error:
        pytest.skip(f"needs an ext4 that can be shut down: {error}")
    finally:
        os.close(fd)


@pytest.mark.parametrize(("harm", "readable"), [(turn_read_only, True), (shut_down, False)])
def test_an_ext4_that_gives_up(tmp_path: Path, harm: Callable[[Path], None], *, readable: bool) -> None:
    async def scenario(root: Path) -> None:
        disk = Disk(root)
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2)
            harm(root)
            for number in range(20):
                assert await disk.load(tier, 1, 2) == [readable] * 2
                assert await disk.store(tier, 10 + number) == [False]
            assert tier.counters.write_errors + tier.counters.declined == 20
        with pytest.raises(PermanentTierError, match="cannot be opened"):
            await disk.make(4).open()

    with mounts.on_loop_device(tmp_path / "ext4", "ext4", 16 * 2**20, ",errors=remount-ro") as root:
        asyncio.run(scenario(root))


def test_permission_lost_and_given_back(disk: Disk) -> None:
    async def scenario() -> None:
        settings = {"slab_bytes": 4 * disk.slot_bytes}
        async with disk.opened(8, **settings) as tier:
            await disk.store(tier, *range(4))
            with mounts.immutable(*disk.slabs(), disk.directory):
                for number in range(10, 20):
                    assert await disk.store(tier, number) == [False]
                assert tier.counters.write_errors > 0
                kept = await present(tier)
                assert all(await disk.load(tier, *kept))
            disk.clock.now += 60
            assert all(await disk.store(tier, *range(20, 26)))
            assert all(await disk.load(tier, *range(20, 26)))
        forbidden = mounts.immutable(disk.directory, *disk.directory.iterdir())
        with forbidden, pytest.raises(PermanentTierError, match="cannot be opened"):
            await disk.make(8, **settings).open()
        async with disk.opened(8, **settings) as tier:
            assert all(await disk.load(tier, *range(20, 26)))

    asyncio.run(scenario())


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

    async def holds_all_it_is_given(tier: DiskTier, numbers: range) -> None:
        disk.clock.now += 60
        assert all(await disk.store(tier, *numbers))
        assert all(await disk.load(tier, *numbers))

    async def scenario() -> None:
        async with disk.opened(64, **settings) as tier:
            deleter = threading.Thread(target=delete)
            deleter.start()
            try:
                await asyncio.gather(*(client(tier, seed) for seed in range(4)))
            finally:
                done.set()
                deleter.join()
            await holds_all_it_is_given(tier, range(200, 264))
        async with disk.opened(64, **settings) as tier:
            await disk.load(tier, *range(264))
            await holds_all_it_is_given(tier, range(300, 364))

    asyncio.run(scenario())


KINDS = {
    "ramfs": mounts.ramfs,
    "overlay": mounts.overlay,
    "tmpfs": lambda place: mounts.tmpfs(place, "8m"),
    "ext2": lambda place: mounts.on_loop_device(place, "ext2", 8 * 2**20),
}


@pytest.mark.parametrize("mount", KINDS.values(), ids=KINDS)
def test_tc_39_round_trips_whatever_the_file_system_can_do(tmp_path: Path, mount: Mount) -> None:
    async def scenario(root: Path) -> None:
        for row_bytes in (4096, 4608, 1000):
            for offset in (0, 512, 1):
                disk = Disk(root / f"{row_bytes}-{offset}", row_bytes)
                keys = keys_of(*range(7))
                async with disk.opened() as tier:
                    assert all(await tier.store(keys, rows_for(keys, row_bytes, offset)))
                async with disk.opened() as tier:
                    rows = blank_rows(len(keys), row_bytes, offset)
                    assert all(await tier.load(keys, rows))
                    for key, row in zip(keys, rows, strict=True):
                        assert row == bytes_of(key, row_bytes)
                    assert_untouched_around(rows)
                    assert mount is not mounts.ramfs or "buffered I/O" in tier.describe()

    with mount(tmp_path / "mounted") as root:
        asyncio.run(scenario(root))


def test_tc_39_direct_io_demanded_where_there_is_none(tmp_path: Path) -> None:
    async def scenario(root: Path) -> None:
        with pytest.raises(PermanentTierError, match="does not support O_DIRECT"):
            await Disk(root).make(o_direct="on").open()

    with mounts.ramfs(tmp_path / "ramfs") as root:
        asyncio.run(scenario(root))


@pytest.mark.parametrize("code", ["EINVAL", "EOPNOTSUPP"])
def test_tc_39_no_preallocation(faulty: mounts.Faulty, code: str) -> None:
    async def scenario() -> None:
        disk = Disk(faulty.path)
        faulty.fail(fallocate={"errno": code})
        async with disk.opened() as tier:
            assert all(await disk.store(tier, *range(8)))
            assert all(await disk.load(tier, *range(8)))

    asyncio.run(scenario())
