"""What goes in comes out: round trips, alignment, legal short calls, concurrency."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from disk_harness import Disk, assert_untouched_around, blank_rows, bytes_of, key_of, keys_of, present, rows_for

from tiering.keys import OffloadKey
from tiering.tier import KnowsKeys, TracksRecency
from tiers.disk import tiering_register_tier
from tiers.disk.slab import SlabFiles
from tiers.disk.system_calls import SystemCalls
from tiers.disk.tier import DiskTier

Move = Callable[[int, Sequence[memoryview], int], int]


def test_the_hook_returns_the_class() -> None:
    assert tiering_register_tier() is DiskTier
    assert issubclass(DiskTier, KnowsKeys)
    assert issubclass(DiskTier, TracksRecency)


def test_round_trip_with_absent_keys_between(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            assert await disk.store(tier, 1, 2, 3) == [True, True, True]
            assert await disk.load(tier, 3, 9, 1) == [True, False, True]
            assert await tier.lookup(keys_of(9, 2)) == [False, True]
            assert tier.contains(key_of(2))
            assert not tier.contains(key_of(2, group=1))
            assert await tier.store([], []) == await tier.load([], []) == []
            assert (await tier.usage()).used_bytes == 3 * disk.slot_bytes
            assert tier.counters.stored == 3
            assert tier.counters.loaded == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("o_direct", ["auto", "off"])
@pytest.mark.parametrize("offset", [0, 512, 1])
@pytest.mark.parametrize("row_bytes", [4096, 4608, 1000, 1])
def test_tc_39_every_row_size_and_alignment(tmp_path: Path, row_bytes: int, offset: int, o_direct: str) -> None:
    disk = Disk(tmp_path, row_bytes)
    keys = keys_of(*range(7))

    async def scenario() -> None:
        async with disk.opened(o_direct=o_direct) as tier:
            assert all(await tier.store(keys, rows_for(keys, row_bytes, offset)))
            rows = blank_rows(len(keys), row_bytes, offset)
            assert all(await tier.load(keys, rows))
            for key, row in zip(keys, rows, strict=True):
                assert row == bytes_of(key, row_bytes)
            assert_untouched_around(rows)

    asyncio.run(scenario())


def test_striped_over_roots_and_many_slabs(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    settings = {"root_dirs": roots, "slab_bytes": 4 * disk.slot_bytes}

    async def scenario() -> None:
        async with disk.opened(40, **settings) as tier:
            assert all(await disk.store(tier, *range(40)))
            for root in roots:
                assert len(list(root.rglob("slab-*.kv"))) == 4
            assert disk.slab_bytes_on_disk() == 40 * disk.slot_bytes
        async with disk.opened(40, **settings) as tier:
            assert all(await disk.load(tier, *range(40)))

    asyncio.run(scenario())


def limited(move: Move, most: int) -> Move:
    """Let every call move at most ``most`` bytes, and every third call none: it is interrupted."""
    calls = 0

    def call(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise InterruptedError(errno.EINTR, "interrupted")
        return move(fd, [buffers[0][:most]], offset)

    return call


@pytest.mark.parametrize("o_direct", ["auto", "off"])
def test_tc_37_legal_short_calls_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, o_direct: str) -> None:
    disk = Disk(tmp_path, 65536)

    async def scenario() -> None:
        async with disk.opened(o_direct=o_direct) as tier:
            monkeypatch.setattr(os, "pwritev", limited(os.pwritev, 1000))
            monkeypatch.setattr(os, "preadv", limited(os.preadv, 1000))
            assert all(await disk.store(tier, *range(5)))
            assert all(await disk.load(tier, *range(5)))
            assert tier.counters.corrupt == tier.counters.read_errors == 0

    asyncio.run(scenario())


def test_tc_37_end_of_file_inside_a_row_is_corruption(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
            end = disk.offset_of(2) + disk.slot_bytes
            os.truncate(disk.slabs()[0], end - 1)
            assert await disk.load(tier, 1, 2) == [True, False]
            assert not tier.contains(key_of(2))

    asyncio.run(scenario())


def test_tc_39_direct_io_refused_in_mid_run_goes_on_buffered(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pwritev = os.pwritev
    refusals = 0

    def refuse_direct(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        nonlocal refusals
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refusals += 1
            raise OSError(errno.EINVAL, "no direct I/O today")
        return pwritev(fd, buffers, offset)

    async def scenario() -> None:
        async with disk.opened() as tier:
            if "O_DIRECT" not in tier.describe():
                pytest.skip("the file system under the temporary directory has no direct I/O")
            await disk.store(tier, 1)
            monkeypatch.setattr(os, "pwritev", refuse_direct)
            assert all(await disk.store(tier, 2, 3))
            assert all(await disk.store(tier, 4, 5))
            assert all(await disk.load(tier, 1, 2, 3, 4, 5))
            assert refusals == 1
            assert "buffered" in tier.describe()

    asyncio.run(scenario())
    assert len(caplog.records) == 1


def test_tc_39_file_system_without_direct_io_or_preallocation(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "not here")

    async def scenario() -> None:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
        async with disk.opened(o_direct="off") as tier:
            assert all(await disk.store(tier, *range(8)))
            assert all(await disk.load(tier, *range(8)))

    asyncio.run(scenario())


def test_concurrent_stores_of_a_key_write_once(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            answers = await asyncio.gather(disk.store(tier, 1, 2), disk.store(tier, 2, 1, 3), disk.store(tier, 1))
            assert answers == [[True, True], [True, True, True], [True]]
            assert tier.counters.stored == 3
            assert all(await disk.load(tier, 1, 2, 3))

    asyncio.run(scenario())


def test_many_calls_at_once_over_few_slots(disk: Disk) -> None:
    """Evictions, stores and loads of the same keys at once: every load is exact or a miss, no slot is lost."""

    async def scenario() -> None:
        async with disk.opened(10) as tier:

            async def client(seed: int) -> None:
                for turn in range(12):
                    numbers = [(seed * 7 + turn * 3 + i) % 25 for i in range(4)]
                    await disk.store(tier, *numbers)
                    await disk.load(tier, *reversed(numbers))

            await asyncio.gather(*map(client, range(8)))
            assert tier.counters.corrupt == 0
            assert all(await disk.store(tier, *range(100, 110)))
            assert sorted(await present(tier)) == list(range(100, 110))
            assert disk.slab_bytes_on_disk() <= 10 * disk.slot_bytes

    asyncio.run(scenario())


def test_a_burst_of_stores_evicts_for_those_only_that_are_being_written(disk: Disk) -> None:
    go_on = threading.Event()

    class Held(SystemCalls):
        def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
            assert go_on.wait(20)
            return super().pwritev(fd, buffers, offset)

    async def scenario() -> None:
        async with disk.opened(6, threads=1) as tier:
            await disk.store(tier, *range(6))
            go_on.clear()
            stores = [asyncio.create_task(disk.store(tier, number)) for number in range(10, 16)]
            for _ in range(3):
                await asyncio.sleep(0)
            assert len(disk.evicted) == 2
            go_on.set()
            assert await asyncio.gather(*stores) == [[True]] * 6
            assert sorted(await present(tier)) == list(range(10, 16))

    disk.system = Held()
    go_on.set()
    asyncio.run(scenario())


def test_an_unexpected_error_leaves_no_slot_or_pin_behind(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise MemoryError

    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1)
            with monkeypatch.context() as patched:
                patched.setattr(os, "pwritev", fail)
                patched.setattr(os, "preadv", fail)
                for _ in range(20):
                    with pytest.raises(MemoryError):
                        await disk.store(tier, 2, 3)
                    with pytest.raises(MemoryError):
                        await disk.load(tier, 1)
            assert await disk.load(tier, 1) == [True]
            assert await disk.store(tier, 2, 3, 4, 5) == [True] * 4
            assert await disk.load(tier, 2, 3, 4, 5) == [True] * 4

    asyncio.run(scenario())


def test_a_key_too_long_for_a_header_is_declined(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            keys = [OffloadKey(bytes(4032)), OffloadKey(bytes(4033))]
            assert await tier.store(keys, blank_rows(2)) == [True, False]
            assert await tier.load(keys, blank_rows(2)) == [True, False]

    asyncio.run(scenario())


class MovesAtMost2GiB(SystemCalls):
    """Counts what a kernel with its limit per call would move; touches neither memory nor disk."""

    MOST = 0x7FFFF000

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def _count(self, buffers: Sequence[memoryview], offset: int) -> int:
        moved = min(self.MOST, sum(map(len, buffers)))
        self.calls.append((offset, moved))
        return moved

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return self._count(buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return self._count(buffers, offset)

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        os.ftruncate(fd, offset + num_bytes)


def test_tc_37_more_than_one_call_can_move(tmp_path: Path) -> None:
    slot_bytes = 5 * 2**30
    system = MovesAtMost2GiB()
    slabs = SlabFiles(
        tmp_path,
        system,
        slot_bytes=slot_bytes,
        slots_per_slab=4,
        num_slots=4,
        direct=False,
        free_space_reserve=0,
    )
    try:
        with (tmp_path / "sparse").open("w+b") as sparse:
            sparse.truncate(slot_bytes)
            untouched = memoryview(mmap.mmap(sparse.fileno(), slot_bytes))
        header, row = untouched[:4096], untouched[4096:]
        for move in (slabs.write, slabs.read):
            system.calls.clear()
            move(1, [header, row])
            starts, counts = zip(*system.calls, strict=True)
            assert counts == (system.MOST, system.MOST, slot_bytes - 2 * system.MOST)
            assert starts == (slot_bytes, slot_bytes + system.MOST, slot_bytes + 2 * system.MOST)
    finally:
        slabs.close()
