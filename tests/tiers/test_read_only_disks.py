"""A disk tier on file systems that take no writes: from some moment on, for a while, or from the start."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
from collections.abc import Callable
from pathlib import Path

import mounts
import pytest
from disk_harness import Disk, index_is_written, present, roots_are_checked

from tiering.errors import PermanentTierError


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
            await index_is_written(tier)
            harm(root)
            for number in range(20):
                assert await disk.load(tier, 1, 2) == [readable] * 2
                assert await disk.store(tier, 10 + number) == [False]
            assert tier.counters.write_errors + tier.counters.declined == 20
        if readable:
            async with disk.opened(4) as tier:
                assert await disk.load(tier, 1, 2) == [True, True]
                assert await disk.store(tier, 3) == [False]
        else:
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


@pytest.mark.parametrize("o_direct", ["on", "off"])
@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_file_system_that_is_read_only_at_the_start(tmp_path: Path, index: str, o_direct: str) -> None:
    """Several engines may read from it; once it takes writes, the one that is left owns it, chunks and all."""

    async def scenario(root: Path) -> None:
        disk = Disk(root)
        settings = {"slab_bytes": 4 * disk.slot_bytes, "o_direct": o_direct}
        async with disk.opened(8, **settings) as tier:
            assert all(await disk.store(tier, *range(6)))
        if index == "lost":
            for path in disk.directory.glob("index.*"):
                path.unlink()
        contents = {path: path.read_bytes() for path in disk.directory.iterdir()}
        mounts.remount(root, "ro")
        with pytest.raises(PermanentTierError, match="cannot be opened"):
            await disk.make(8, recover="none", **settings).open()
        async with disk.opened(8, **settings) as tier:
            assert "1 of 1 roots read-only, 8 slots, 6 chunks recovered" in tier.describe()
            assert tier.describe().startswith("O_DIRECT" if o_direct == "on" else "buffered")
            async with disk.opened(8, **settings) as other:
                assert all(await disk.load(other, *range(6)))
            for number in range(6, 20):
                assert await disk.store(tier, number) == [False]
            assert all(await disk.load(tier, *range(6)))
            assert (tier.counters.roots_read_only, tier.counters.declined, disk.evicted) == (1, 14, [])
            disk.clock.now += 60
            await roots_are_checked(tier)
            assert all(await disk.load(tier, *range(6)))
            assert {path: path.read_bytes() for path in disk.directory.iterdir()} == contents

            mounts.remount(root, "rw")
            disk.clock.now += 60
            await roots_are_checked(tier)
            assert "read-only" not in tier.describe()
            assert all(await disk.load(tier, *range(6)))
            assert await disk.store(tier, 6, 7) == [True, True]
            with pytest.raises(PermanentTierError, match=f"in use by process {os.getpid()}"):
                await disk.make(8, **settings).open()
        async with disk.opened(8, **settings) as tier:
            assert all(await disk.load(tier, *range(8)))

    with mounts.on_loop_device(tmp_path / "ext4", "ext4", 16 * 2**20) as root:
        asyncio.run(scenario(root))


def test_a_read_only_root_among_others_and_one_with_an_owner(tmp_path: Path) -> None:
    """The others take the stores. While somebody owns it who can write there, nobody borrows it."""

    async def scenario(root: Path) -> None:
        disk = Disk(root / "ours")
        roots = {"root_dirs": [disk.root, tmp_path / "other"]}
        async with disk.opened(8, **roots) as tier:
            assert all(await disk.store(tier, *range(8)))
        elsewhere = tmp_path / "elsewhere"
        with mounts.read_only_view(elsewhere, root):
            borrowed = {"root_dirs": [elsewhere / "ours", tmp_path / "other"]}
            async with disk.opened(4, root_dirs=[disk.root]):
                with pytest.raises(PermanentTierError, match=f"in use by process {os.getpid()}"):
                    await disk.make(8, **borrowed).open()
            async with disk.opened(8, **borrowed) as tier:
                assert "1 of 2 roots read-only" in tier.describe()
                kept = await present(tier)
                assert (await disk.store(tier, *range(20, 28))).count(True) == 4
                assert len(set(await present(tier)) & set(kept)) == 4
                assert all(await disk.load(tier, *await present(tier)))

    with mounts.tmpfs(tmp_path / "tmpfs", "8m") as root:
        asyncio.run(scenario(root))
