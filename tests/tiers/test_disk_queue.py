"""The line in front of the threads: reads before writes, nobody for ever, errors after all has ended."""

from __future__ import annotations

import asyncio
import threading

import pytest
from disk_harness import run_on_default_threads

from tiering.job_loop import BlockingThreads
from tiers.disk.io_queue import IoQueue


def test_reads_go_before_writes_that_wait_longer() -> None:
    async def scenario() -> None:
        queue = IoQueue(run_on_default_threads, 1)
        go_on = threading.Event()
        order: list[str] = []
        first = asyncio.create_task(queue.write([lambda: go_on.wait(20)]))
        await asyncio.sleep(0)
        writes = asyncio.create_task(queue.write([lambda: order.append("write")] * 3))
        await asyncio.sleep(0)
        reads = asyncio.create_task(queue.read([lambda: order.append("read")] * 40))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(first, writes, reads)
        assert order[:16] == ["read"] * 16
        assert order[16:18] == ["write", "read"], "but a write gets its turn"
        assert order.count("read") == 40

    asyncio.run(scenario())


def test_as_many_at_once_as_there_are_threads_and_all_of_them() -> None:
    async def scenario() -> None:
        queue = IoQueue(run_on_default_threads, 3)
        together = threading.Barrier(3, timeout=20)
        most = running = 0
        lock = threading.Lock()

        def call(number: int) -> int:
            nonlocal most, running
            with lock:
                running += 1
                most = max(most, running)
            together.wait()
            with lock:
                running -= 1
            return number

        halves = [range(12), range(12, 24)]
        results = await asyncio.gather(
            *(queue.read([lambda number=number: call(number) for number in half]) for half in halves)
        )
        assert results == [[*half] for half in halves]
        assert most == 3

    asyncio.run(scenario())


def test_a_call_begins_at_once_whatever_the_loop_does_next() -> None:
    """The jobs of a step come together: the first must not wait for the bookkeeping of the last."""
    threads = BlockingThreads("test", 1)
    begun = threading.Event()

    async def keep_the_loop_busy() -> bool:
        return begun.wait(20)

    async def scenario() -> None:
        queue = IoQueue(threads.run, 1)
        _, has_begun = await asyncio.gather(queue.read([begun.set]), keep_the_loop_busy())
        assert has_begun

    asyncio.run(scenario())
    threads.end()


def test_an_error_is_raised_once_everything_has_ended() -> None:
    async def scenario() -> None:
        queue = IoQueue(run_on_default_threads, 2)
        ended = []

        def fail() -> None:
            raise MemoryError

        with pytest.raises(MemoryError):
            await queue.write([fail, lambda: ended.append(1), fail, lambda: ended.append(2)])
        assert sorted(ended) == [1, 2]
        assert await queue.read([lambda: 3]) == [3]

    asyncio.run(scenario())
