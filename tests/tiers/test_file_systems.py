"""A disk tier on file systems that can do less than most: no direct I/O, no preallocation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import mounts
import pytest
from disk_harness import (
    Disk,
    assert_untouched_around,
    blank_rows,
    bytes_of,
    keys_of,
    rows_for,
)

from tiering.errors import PermanentTierError

Mount = Callable[[Path], contextlib.AbstractContextManager[Path]]


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
