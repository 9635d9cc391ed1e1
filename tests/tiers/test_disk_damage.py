"""Damage and failing disks: a miss and a count, never a wrong byte and never the end of the tier."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from disk_harness import Disk, bytes_of, key_of, namespace, present, roots_are_checked
from faulty_calls import FailingPlaces

from tiers.disk.header import PAGE_BYTES, SlotHeader, encode_header, parse_header


def replacement(disk: Disk, stored_row_bytes: int) -> bytes:
    """Return an intact slot as a writer with another row size would have left it."""
    import xxhash

    row = bytes_of(key_of(2), stored_row_bytes)
    checksum = xxhash.xxh3_64_intdigest(row)
    return encode_header(namespace().fingerprint, key_of(2), 2, stored_row_bytes, checksum) + row


@pytest.mark.parametrize("change_of_length", [8192, 1, -1, -8192])
def test_tc_01_a_row_of_another_length_is_a_miss(disk: Disk, change_of_length: int) -> None:
    async def scenario() -> None:
        async with disk.opened(3) as tier:
            for number in (1, 2, 3):
                await disk.store(tier, number)
            slot = replacement(disk, disk.row_bytes + change_of_length)
            disk.overwrite(disk.offset_of(2), slot[: disk.slot_bytes])
            assert await disk.load(tier, 1, 2, 3) == [True, False, True]
            assert tier.counters.corrupt == 1
            assert disk.evicted == [key_of(2)]
            assert await disk.load(tier, 2) == [False]
            assert tier.counters.corrupt == 1, "a chunk is tried once, not again and again"
            assert await disk.store(tier, 2) == [True]
            assert await disk.load(tier, 1, 2, 3) == [True] * 3

    asyncio.run(scenario())


def test_tc_02_a_flipped_bit_costs_its_chunk_only(disk: Disk) -> None:
    places = [0, 8, 12, 16, 32, 40, 48, 56, 91, 4087, 4095, 4096, 4096 + 8191]

    async def scenario() -> None:
        async with disk.opened() as tier:
            for place in places:
                await disk.store(tier, 1, 2, 3, 4)
                at = disk.offset_of(2) + place
                disk.overwrite(at, bytes([disk.slabs()[0].read_bytes()[at] ^ 0x10]))
                assert await disk.load(tier, 1, 2, 3, 4) == [True, False, True, True], place
            assert tier.counters.corrupt == len(places)

    asyncio.run(scenario())


def test_a_slot_with_an_older_write_of_another_key_is_a_miss(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
            await disk.store(tier, 2)
            data = disk.slabs()[0].read_bytes()
            first = data[disk.offset_of(1) :][: disk.slot_bytes]
            disk.overwrite(disk.offset_of(2), first)
            assert await disk.load(tier, 1, 2) == [True, False]

    asyncio.run(scenario())


@pytest.mark.parametrize("harm", ["truncated", "deleted"])
def test_a_lost_slab_is_a_miss_once_and_can_be_stored_again(disk: Disk, harm: str) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
        if harm == "truncated":
            os.truncate(disk.slabs()[0], 5000)
        else:
            disk.slabs()[0].unlink()
        async with disk.opened() as tier:
            assert await disk.load(tier, 1, 2) == [False, False]
            assert await present(tier) == []
            assert await disk.store(tier, 1, 2) == [True, True]
        async with disk.opened() as tier:
            assert await disk.load(tier, 1, 2) == [True, True]

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
def test_tc_35_a_read_error_keeps_the_chunk(disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, "injected")

    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
            with monkeypatch.context() as patched:
                patched.setattr(os, "preadv", fail)
                for _ in range(50):
                    assert await disk.load(tier, 1) == [False]
            assert await disk.load(tier, 1) == [True]
            assert tier.counters.read_errors == 50
            assert disk.evicted == []

    asyncio.run(scenario())


def test_one_bad_sector_costs_one_chunk_of_a_joined_call(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv, pwritev = os.preadv, os.pwritev
    bad = 2 * disk.slot_bytes

    def fails_on_bad(offset: int, buffers: Sequence[memoryview]) -> None:
        if offset <= bad < offset + sum(map(len, buffers)):
            raise OSError(errno.EIO, "bad sector")

    def read(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        fails_on_bad(offset, buffers)
        return preadv(fd, buffers, offset)

    def write(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        fails_on_bad(offset, buffers)
        return pwritev(fd, buffers, offset)

    async def scenario() -> None:
        async with disk.opened(5) as tier:
            await disk.store(tier, 0, 1, 2, 3)
            monkeypatch.setattr(os, "preadv", read)
            assert await disk.load(tier, 0, 1, 2, 3) == [True, True, False, True]
            await tier.delete([key_of(number) for number in range(4)])
            monkeypatch.setattr(os, "pwritev", write)
            answers = await disk.store(tier, 10, 11, 12, 13)
            assert answers.count(False) == 1
            assert tier.counters.write_errors == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_write_error_costs_the_chunk_and_nothing_else(disk: Disk, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, "injected")

    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2)
            with monkeypatch.context() as patched:
                patched.setattr(os, "pwritev", fail)
                assert await disk.store(tier, 2, 3) == [True, False]
                assert await disk.load(tier, 1, 2, 3) == [True, True, False]
            disk.clock.now += 60
            assert await disk.store(tier, 3, 4) == [True, True]
            assert await disk.load(tier, 1, 2, 3, 4) == [True] * 4
            assert tier.counters.write_errors == 1

    asyncio.run(scenario())


@pytest.fixture
def small_file_system(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount_point)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def test_a_full_disk_goes_on_with_the_slots_it_has(small_file_system: Path) -> None:
    disk = Disk(small_file_system)
    ballast = small_file_system / "ballast"

    async def scenario() -> None:
        ballast.write_bytes(bytes(2**19))
        async with disk.opened(1000) as tier:
            answers = await disk.store(tier, *range(100))
            kept = answers.count(True)
            assert 20 < kept < 45
            assert tier.counters.write_errors == 100 - kept
            stored = await present(tier)
            assert await disk.load(tier, *stored) == [True] * kept
            assert await disk.store(tier, *range(200, 210)) == [True] * 10, "the oldest chunks make room"
            ballast.unlink()
            disk.clock.now += 60
            assert await disk.store(tier, *range(300, 310)) == [True] * 10, "the slab grows again"
            assert (await tier.usage()).num_chunks == kept + 10

    asyncio.run(scenario())


def test_the_free_space_reserve_is_left_alone(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(8, free_space_reserve="1024TiB") as tier:
            assert await disk.store(tier, 1) == [False]
            assert disk.slab_bytes_on_disk() == 0

    asyncio.run(scenario())


def test_a_header_of_another_format_version_is_not_read() -> None:
    header = SlotHeader(bytes(16), key_of(1), 5, 8192, 99)
    page = memoryview(bytearray(encode_header(*header)))
    assert len(page) == PAGE_BYTES
    assert parse_header(page) == header
    page[8] = 2
    assert parse_header(page) is None


@pytest.mark.parametrize("harm", ["truncated", "deleted", "unreadable"])
def test_tc_12_a_chunk_that_cannot_be_loaded_is_soon_not_promised_any_more(disk: Disk, harm: str) -> None:
    """At once where it is gone or damaged, after three tries where reading fails; stored again, it is there again."""
    disk.system = system = FailingPlaces()

    async def scenario() -> None:
        async with disk.opened(8) as tier:
            await disk.store(tier, 1)
            await disk.store(tier, 2)
        (slab,) = disk.slabs()
        if harm == "truncated":
            os.truncate(slab, disk.offset_of(2) + 5000)
        elif harm == "deleted":
            slab.unlink()
        else:
            system.bad_sector = (slab.name, disk.offset_of(2) + 5000)
        others = [harm != "deleted"]
        async with disk.opened(8) as tier:
            attempts = 0
            for _ in range(50):
                if await tier.lookup([key_of(2)]) == [True]:
                    attempts += 1
                    assert await disk.load(tier, 2) == [False]
                    await roots_are_checked(tier)
                assert await disk.load(tier, 1) == others
            assert attempts <= 3
            assert attempts == 3 or harm != "unreadable"
            assert await disk.store(tier, 2) == [True]
            assert await tier.lookup([key_of(2)]) == [True]
            assert await disk.load(tier, 2) == [True]

    asyncio.run(scenario())


def test_tc_34_a_write_that_is_cut_short_by_a_full_disk(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call moves half, the second finds no space: what was there before in that slot is gone, and no more."""
    pwritev = os.pwritev
    halves = iter([True, False])

    def half(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(halves, False):
            return pwritev(fd, [buffers[0], buffers[1][:4096]], offset)
        raise OSError(errno.ENOSPC, "full")

    async def scenario() -> None:
        async with disk.opened(3) as tier:
            await disk.store(tier, 1, 2, 3)
            with monkeypatch.context() as patched:
                patched.setattr(os, "pwritev", half)
                assert await disk.store(tier, 4) == [False]
            assert (await disk.load(tier, 1, 2, 3)).count(True) == 2
            assert await disk.load(tier, 4) == [False]
            assert tier.counters.write_errors == 1
            disk.clock.now += 60
            assert await disk.store(tier, 4) == [True]
            assert await disk.load(tier, 4) == [True]

    asyncio.run(scenario())


def test_tc_35_an_interrupted_read_is_continued(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv
    interruptions = iter([True] * 5)

    def interrupted(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if next(interruptions, False):
            raise InterruptedError(errno.EINTR, "interrupted")
        return preadv(fd, buffers, offset)

    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
            monkeypatch.setattr(os, "preadv", interrupted)
            assert await disk.load(tier, 1, 2) == [True, True]
            assert not any(interruptions)
            assert tier.counters.read_errors == 0

    asyncio.run(scenario())
