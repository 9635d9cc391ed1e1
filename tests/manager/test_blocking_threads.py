"""Threads for the blocking calls of a tier."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tiering.job_loop import BlockingThreads
from tiering.testing import ResourceWatch


def test_a_call_given_up_by_its_tier_keeps_its_thread_and_no_other() -> None:
    """The next call must not queue behind one that hangs while more threads are allowed."""
    release = threading.Event()

    async def scenario(threads: BlockingThreads) -> int:
        hung = asyncio.ensure_future(threads.run(release.wait))
        await asyncio.sleep(0)
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        answer = await asyncio.wait_for(threads.run(int, "7"), timeout=10)
        release.set()
        return answer

    with ResourceWatch():
        threads = BlockingThreads("test", 2)
        try:
            assert asyncio.run(scenario(threads)) == 7
        finally:
            release.set()
            threads.end()


def test_threads_are_started_as_they_are_needed_and_not_beyond_the_limit() -> None:
    async def scenario(threads: BlockingThreads) -> list[str]:
        alone = [await threads.run(lambda: threading.current_thread().name) for _ in range(5)]
        assert set(alone) == {"test-0"}
        meeting = threading.Barrier(3)
        names = await asyncio.gather(*[threads.run(_meet, meeting) for _ in range(6)])
        return sorted(set(names))

    with ResourceWatch():
        threads = BlockingThreads("test", 3)
        assert asyncio.run(scenario(threads)) == ["test-0", "test-1", "test-2"]
        threads.end()


def _meet(meeting: threading.Barrier) -> str:
    meeting.wait(10)
    return threading.current_thread().name


def test_a_thread_that_cannot_be_started_is_waited_for_by_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario(threads: BlockingThreads) -> int:
        with monkeypatch.context() as exhausted:
            exhausted.setattr(threading.Thread, "start", refuse)
            with pytest.raises(RuntimeError, match="can't start"):
                threads.run(int, "6")
        return await asyncio.wait_for(threads.run(int, "7"), timeout=10)

    with ResourceWatch():
        threads = BlockingThreads("test", 2)
        assert asyncio.run(scenario(threads)) == 7
        threads.end()


def test_what_a_call_raises_is_raised_by_its_await() -> None:
    async def scenario(threads: BlockingThreads) -> None:
        for error in (OSError("disk"), KeyboardInterrupt(), SystemExit(3)):
            with pytest.raises(type(error)):
                await threads.run(_raise, error)
        with pytest.raises(RuntimeError, match="StopIteration"):
            await threads.run(_raise, StopIteration())

    threads = BlockingThreads("test", 1)
    asyncio.run(scenario(threads))
    threads.end()


def _raise(error: BaseException) -> None:
    raise error
