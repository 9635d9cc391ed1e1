"""A writer killed at every step of a write and at random times: what the next owner of the directory finds.

The writer is a forked child. After each store it waits until the index is written and then tells through a pipe
which chunks the index names; when the pipe ends, it is dead.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest
from disk_harness import Disk, index_is_written, keys_of, present
from faulty_calls import FailingPlaces, KilledAt

from tiering.errors import PermanentTierError
from tiers.disk.system_calls import SystemCalls
from tiers.disk.tier import DiskTier

NUM_SLOTS = 60
CHUNKS_PER_STORE = 5
NUMBERS = range(400)


async def write(disk: Disk, first: int, tell: Callable[[str], object], **settings: object) -> None:
    tier = disk.make(NUM_SLOTS, snapshot_every=12, slab_bytes=16 * disk.slot_bytes, **settings)
    await tier.open()
    tell("open")
    for number in range(first, len(NUMBERS) - CHUNKS_PER_STORE, CHUNKS_PER_STORE - 1):
        await disk.store(tier, *range(number, number + CHUNKS_PER_STORE))
        await index_is_written(tier)
        tell(" ".join(map(str, await present(tier))))
    tell("ended")


@contextmanager
def writer(disk: Disk, first: int, system: SystemCalls, **settings: object) -> Iterator[tuple[int, TextIO]]:
    """Fork a writer; give its process number and the reading end of its pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            disk.system = system
            asyncio.run(write(disk, first, lambda line: os.write(writing, f"{line}\n".encode()), **settings))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as lines:
        yield pid, lines
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def last_told(lines: list[str]) -> list[int]:
    """Return the chunks of the last complete line, the least recent first."""
    told = [line for line in lines if line.endswith("\n") and line != "open\n"]
    return [int(number) for number in told[-1].split()] if told else []


async def check(disk: Disk, told: list[int], **settings: object) -> tuple[int, int]:
    """Check what the next owner finds; return how many of the chunks that must still be there are, and of how many."""
    settings = {"slab_bytes": 16 * disk.slot_bytes} | settings
    async with disk.opened(NUM_SLOTS, model_name="other", **settings) as other:
        assert await present(other) == []
        assert not any(await disk.load(other, *NUMBERS))
    async with disk.opened(NUM_SLOTS, **settings) as tier:
        for _ in range(2):
            found = await present(tier)
            usage = await tier.usage()
            assert (usage.num_chunks, usage.used_bytes) == (len(found), len(found) * disk.slot_bytes)
            assert len(set(found)) == len(found)
            answers = await disk.load(tier, *NUMBERS)  # compares all bytes
            assert {number for number, answer in zip(NUMBERS, answers, strict=True) if answer} <= set(found)
        # The store under way when the writer died may have evicted that many of the least recent chunks.
        due = told[2 * CHUNKS_PER_STORE :] if len(told) > NUM_SLOTS - CHUNKS_PER_STORE else told
        kept = sum(answers[number] for number in due)
        for start in range(0, NUM_SLOTS, 20):
            assert all(await disk.store(tier, *range(start, start + 20)))
        assert len(await present(tier)) == NUM_SLOTS
    assert disk.slab_bytes_on_disk() <= NUM_SLOTS * disk.slot_bytes
    return kept, len(due)


@pytest.mark.parametrize("countdown", [1, 5])
@pytest.mark.parametrize("step", KilledAt.STEPS)
def test_tc_33_killed_at_each_step_of_a_write(disk: Disk, step: str, countdown: int) -> None:
    if "growth" in step and countdown > 1:
        countdown = 2
    with writer(disk, 0, KilledAt(step, countdown)) as (_, lines):
        told = last_told(list(lines))
    kept, due = asyncio.run(check(disk, told))
    assert kept == due


async def live(disk: Disk, has_ended: Callable[[], bool], **settings: object) -> None:
    """Store and load, comparing all bytes."""
    async with disk.opened(16, model_name="live", **settings) as tier:
        for round_idx in itertools.count(1):
            numbers = range(round_idx, round_idx + 8)
            assert all(await disk.store(tier, *numbers))
            assert all(await disk.load(tier, *numbers))
            if has_ended():
                return


@contextmanager
def live_writer(disk: Disk, ended: Path, **settings: object) -> Iterator[None]:
    """Another engine at work in the same roots: nothing that happens to its neighbours may disturb it."""
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(live(disk, ended.exists, **settings))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    try:
        yield
    finally:
        ended.touch()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0


def test_tc_33_killed_at_fifty_random_times(tmp_path: Path) -> None:
    """All rounds in the same directories, so that damage would add up."""
    disk = Disk(tmp_path / "a")
    roots = {"root_dirs": [tmp_path / "a", tmp_path / "b"]}
    draw = random.Random(11)
    num_kept = num_due = 0
    with live_writer(disk, tmp_path / "ended", **roots):
        for round_idx in range(50):
            with writer(disk, round_idx * 3, SystemCalls(), **roots) as (pid, lines):
                told = [lines.readline() for _ in range(draw.randrange(1, 20))]
                time.sleep(draw.random() * 0.01)
                os.kill(pid, signal.SIGKILL)
                told += lines
            kept, due = asyncio.run(check(disk, last_told(told), **roots))
            num_kept, num_due = num_kept + kept, num_due + due
    assert num_due > 500
    assert num_kept >= 0.99 * num_due


def test_tc_33_a_chunk_evicted_for_a_write_that_failed_does_not_come_back(disk: Disk) -> None:
    async def scenario() -> None:
        disk.system = system = FailingPlaces()
        killed = disk.make(2)
        await killed.open()
        await disk.store(killed, 1, 2)
        system.bad_sector = ("slab-000000.kv", disk.slot_bytes)  # where chunk 2 lies, the next victim
        assert await disk.store(killed, 3) == [False]
        assert disk.evicted == keys_of(2)
        await index_is_written(killed)
        killed._roots.release()  # what the end of a process does
        disk.system = SystemCalls()
        async with disk.opened(2) as tier:
            assert await present(tier) == [1]

    asyncio.run(scenario())


def test_tc_33_a_killed_writer_leaves_nothing_but_the_files_of_the_format(disk: Disk) -> None:
    with writer(disk, 0, KilledAt("before rename", 2)) as (_, lines):
        list(lines)
    assert (disk.directory / "index.unfinished").exists()

    async def scenario() -> None:
        async with disk.opened(NUM_SLOTS):
            pass

    asyncio.run(scenario())
    names = {path.name for path in disk.directory.iterdir() if path.suffix not in (".journal", ".kv")}
    assert names == {"index.snapshot", "layout.json", "namespace.json", "owner.lock"}


def test_tc_41_a_forked_child_owns_nothing(disk: Disk) -> None:
    """It may not store, does not disturb its parent, and does not keep the next owner out by living on."""
    reading, writing = os.pipe()
    go_on_reading, go_on_writing = os.pipe()

    async def in_child(tier: object) -> str:
        try:
            await disk.store(tier, 5)  # type: ignore[arg-type]
        except Exception as error:
            await tier.close()  # type: ignore[attr-defined]
            return str(error)
        return "stored"

    async def scenario() -> int:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2)
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio._set_running_loop(None)
                    os.write(writing, asyncio.run(in_child(tier)).encode())
                    os.close(writing)
                    os.read(go_on_reading, 1)
                finally:
                    os._exit(0)
            os.close(writing)
            with os.fdopen(reading) as said:
                message = await asyncio.to_thread(said.read)
            assert f"was opened by process {os.getpid()}, and this is process {pid}" in message
            assert all(await disk.store(tier, 3, 4))
        async with disk.opened() as tier:
            assert all(await disk.load(tier, 1, 2, 3, 4))
            assert tier.contains(keys_of(5)[0]) is False
        return pid

    pid = asyncio.run(scenario())
    os.write(go_on_writing, b"x")
    os.waitpid(pid, 0)
    os.close(go_on_reading)
    os.close(go_on_writing)


def test_tc_41_four_forked_children_store_the_same_keys(disk: Disk) -> None:
    """Each child is told that it owns nothing; what its parent stores meanwhile is whole."""
    numbers = range(100)

    async def refused(tier: DiskTier) -> bool:
        try:
            await disk.store(tier, *numbers)
        except PermanentTierError:
            return True
        return False

    children = []

    async def scenario() -> None:
        async with disk.opened(100) as tier:
            await disk.store(tier, 0)
            for _ in range(4):
                pid = os.fork()
                if pid == 0:
                    asyncio._set_running_loop(None)
                    os._exit(0 if asyncio.run(refused(tier)) else 1)
                children.append(pid)
            assert all(await disk.store(tier, *numbers))
            assert all(await disk.load(tier, *numbers))
        async with disk.opened(100) as tier:
            assert all(await disk.load(tier, *numbers))

    asyncio.run(scenario())
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
