"""The waiting line in front of the threads that move rows: reads before writes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tiering.tier import RunBlocking

__all__ = ["IoQueue"]

R = TypeVar("R")

_READS_UNTIL_A_WRITE = 16


class IoQueue:
    """Blocking calls of many coroutines, carried out on a fixed number of threads.

    A thread that has begun takes one call after the other until none is left, so that under load a call costs no
    hand-over. Where both wait, reads go first, for somebody waits for them; but now and then a write gets its turn,
    so that no row stays pinned for ever.
    """

    def __init__(self, run_blocking: RunBlocking, num_threads: int) -> None:
        self._run_blocking = run_blocking
        self._num_threads = num_threads
        self._reads: deque[_Call] = deque()
        self._writes: deque[_Call] = deque()
        self._reads_since_write = 0
        self._workers: set[asyncio.Future[None]] = set()

    async def read(self, calls: Sequence[Callable[[], R]]) -> list[R]:
        """Carry out calls that somebody waits for; return their results in order once all have ended.

        Raises:
            Exception: what a call raised, after all of them have ended.
        """
        return await self._perform(self._reads, calls)

    async def write(self, calls: Sequence[Callable[[], R]]) -> list[R]:
        """The same for calls that nobody waits for."""
        return await self._perform(self._writes, calls)

    async def _perform(self, waiting: deque[_Call], calls: Sequence[Callable[[], R]]) -> list[R]:
        if not calls:
            return []
        batch: _Batch[R] = _Batch(len(calls))
        waiting.extend(batch.call(place, function) for place, function in enumerate(calls))
        for _ in range(min(len(calls), self._num_threads - len(self._workers))):
            self._begin_worker()
        return await batch.results()

    def _begin_worker(self) -> None:
        worker = asyncio.ensure_future(self._run_blocking(self._work_on_thread))
        self._workers.add(worker)
        worker.add_done_callback(self._end_worker)

    def _end_worker(self, worker: asyncio.Future[None]) -> None:
        self._workers.discard(worker)
        # Calls may have come after the thread found none, when it still counted as busy.
        if not worker.cancelled() and not worker.exception() and (self._reads or self._writes):
            self._begin_worker()

    def _work_on_thread(self) -> None:
        while (call := self._next()) is not None:
            call()

    def _next(self) -> _Call | None:
        first, second = self._reads, self._writes
        if self._reads_since_write >= _READS_UNTIL_A_WRITE:
            first, second = second, first
        for waiting in (first, second):
            try:
                call = waiting.popleft()
            except IndexError:
                continue
            self._reads_since_write = self._reads_since_write + 1 if waiting is self._reads else 0
            return call
        return None


_Call = Callable[[], None]


class _Batch(Generic[R]):
    """Calls whose caller goes on when the last of them has ended."""

    def __init__(self, num_calls: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._results: list[R | None] = [None] * num_calls
        self._left = [None] * num_calls
        self._error: BaseException | None = None

    def call(self, place: int, function: Callable[[], R]) -> _Call:
        def run() -> None:
            try:
                self._results[place] = function()
            except BaseException as error:  # raised where the batch is waited for
                self._error = error
            # A pop is atomic, so whoever finds nothing left knows that all results are in.
            self._left.pop()
            if not self._left:
                self._loop.call_soon_threadsafe(self._end)

        return run

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def results(self) -> list[R]:
        await self._ended
        if self._error is not None:
            raise self._error
        return self._results  # type: ignore[return-value]
