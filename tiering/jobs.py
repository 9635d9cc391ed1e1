"""The only boundary between the scheduler thread and the threads that do I/O.

The scheduler posts work and polls results; neither ever waits. Each tier has an event loop and threads of its own
(`tiering.job_loop`), so that a tier that blocks takes nothing from another. Between them and the scheduler there are
two queues per tier, one in each direction, and nothing else. A coroutine that may touch a row is never cancelled: its
job's result, and with it the right to reuse the row, comes when it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tiering.errors import TierError, text_of
from tiering.events import EventLog, OffloadingEvent
from tiering.flags import checked_flags
from tiering.job_loop import BlockingThreads, JobLoop
from tiering.keys import OffloadKey
from tiering.lent_rows import take_back, take_back_after
from tiering.naming import Namespace
from tiering.questions import Answer, Questions
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult, SecondaryTierManager, TransferJob
from tiering.tier import BreakerConfig, KnowsKeys, LimitsConfig, Tier, TierContext, TracksRecency

__all__ = ["TierWorker"]

logger = logging.getLogger(__name__)


RowViews = Callable[[Sequence[int]], Sequence[memoryview]]
"""Gives the memory of rows by number, one memoryview per row, each over an object of its own (`lent_rows`)."""


class TierWorker(SecondaryTierManager):
    """Drives one coroutine tier for the scheduler.

    What runs on the loop thread is named ``_run_*``; everything else on the scheduler thread. `_inbox` leads to the
    loop, `_outbox` back; its messages keep their order, so an eviction is never overtaken by a later store.
    """

    def __init__(
        self,
        make_tier: Callable[[TierContext], Tier],
        loop: JobLoop,
        row_views: RowViews,
        *,
        name: str,
        row_bytes: int,
        namespace: Namespace,
        enable_events: bool = False,
        num_threads: int = 4,
        limits: LimitsConfig | None = None,
        breaker: BreakerConfig | None = None,
        close_timeout_seconds: float = 30.0,
    ) -> None:
        """Make the tier and open it; waits until it is open.

        Raises:
            Exception: whatever the tier's constructor or `Tier.open` raised; nothing is left running.
        """
        self.name = name
        self.limits = limits or LimitsConfig()
        self.breaker = breaker or BreakerConfig()
        self._loop = loop
        self._row_views = row_views
        self._close_timeout_seconds = close_timeout_seconds
        self._threads = BlockingThreads(f"tiering-{name}", num_threads)
        self._owner_pid = os.getpid()
        self._inbox: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._wake_posted = False
        self._outbox: deque[JobResult | _Answers | _Evicted | _Stored | _Corrupt] = deque()
        self._stores: dict[int, TransferJob] = {}
        self._questions = Questions()
        self._events = EventLog("STORAGE", name) if enable_events else None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_corrupt = 0
        self._has_ended = False
        context = TierContext(
            name,
            row_bytes,
            namespace,
            time.monotonic,
            self._threads.run,
            report_evicted=lambda keys: self._outbox.append(_Evicted(_only_keys(keys))),
            report_stored=lambda keys: self._outbox.append(_Stored(_only_keys(keys))),
            report_corrupt=lambda keys: self._outbox.append(_Corrupt(len(_only_keys(keys)))),
        )
        loop.attach()
        try:
            self._tier = make_tier(context)
            loop.wait_for(self._tier.open())
        except BaseException:
            self._threads.end()
            loop.detach()
            raise
        self.tier_type = self._tier.tier_type
        self._contains = self._tier.contains if isinstance(self._tier, KnowsKeys) else None
        self._touch = self._tier.touch if isinstance(self._tier, TracksRecency) else None

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        if self._contains is not None:
            return self._contains(key)
        answer = self._questions.answer(key, req_context.req_id)
        if isinstance(answer, str):
            raise TierError(answer)
        return answer

    def submit_store(self, job: TransferJob) -> None:
        self._post(partial(self._run_job, job, self._tier.store))
        self._stores[job.job_id] = job

    def submit_load(self, job: TransferJob) -> None:
        self._post(partial(self._run_job, job, self._tier.load))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        while self._outbox:
            match self._outbox.popleft():
                case JobResult() as result:
                    self._note_stored(result)
                    results.append(result)
                case _Answers(batch, found):
                    self._questions.settle_batch(batch, found)
                case _Corrupt(num_chunks):
                    self._num_corrupt += num_chunks
                case _Evicted(keys) if self._events is not None:
                    self._events.removed(keys)
                case _Stored(keys) if self._events is not None:
                    self._events.stored(keys)
        return results

    def take_corrupt(self) -> int:
        num_chunks, self._num_corrupt = self._num_corrupt, 0
        return num_chunks

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        if self._touch is not None:
            self._post(partial(self._run_touch, keys))

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._questions.forget(req_context.req_id)

    def on_schedule_end(self) -> None:
        batch, keys = self._questions.take_unasked()
        if keys:
            self._post(partial(self._run_lookup, batch, keys))

    def has_pending_work(self) -> bool:
        return bool(self._outbox or self._inbox or self._questions.num_open)

    def take_events(self) -> Sequence[OffloadingEvent]:
        return self._events.take() if self._events is not None else ()

    def shutdown(self) -> None:
        """Wait for what runs, then close the tier.

        Does nothing in a forked child, which has none of it.

        Raises:
            TimeoutError: something still runs after ``close_timeout_seconds``. It may still touch its rows, and its
                threads live on.
            Exception: what `Tier.close` raised. Our threads have ended.
        """
        if not self._is_ours:
            return
        try:
            self._loop.wait_for(self._run_close(), self._close_timeout_seconds)
        finally:
            if self._has_ended:
                self._threads.end()
                self._loop.detach()

    def describe(self) -> str:
        """One line about what the tier found and chose when it opened."""
        return self._tier.describe()

    def announce_contents(self) -> None:
        """Make stored events of what the tier holds from an earlier life. At start only: may wait."""
        if self._events is not None and self._contains is not None:
            self._events.stored(self._loop.wait_for(self._run_list_keys()))

    @property
    def _is_ours(self) -> bool:
        return os.getpid() == self._owner_pid

    def _note_stored(self, result: JobResult) -> None:
        job = self._stores.pop(result.job_id, None)
        if job is None:
            return
        stored = [key for key, done in zip(job.keys, result.succeeded, strict=True) if done]
        # An answer that is still on its way may be older than this store.
        self._questions.settle(dict.fromkeys(stored, True))
        if self._events is not None:
            self._events.stored(stored)

    def _post(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._is_ours:
            raise TierError(f"tier {self.name} lives in process {self._owner_pid}: its threads do not survive a fork")
        if self._has_ended:
            raise TierError(f"tier {self.name} is closed")
        self._inbox.append(start)
        if not self._wake_posted:
            self._wake_posted = True
            self._loop.post(self._run_inbox)

    def _run_inbox(self) -> None:
        self._wake_posted = False  # before the queue is emptied, so that no post can fall between the two
        while self._inbox:
            task = asyncio.get_running_loop().create_task(self._inbox.popleft()())
            # Silence for calls that are still under way when the interpreter ends without a shutdown.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_job(self, job: TransferJob, move: _Move) -> None:
        succeeded: Sequence[bool] = [False] * len(job.keys)
        rows: Sequence[memoryview] = ()
        fault = ""
        try:
            rows = self._row_views(job.rows)
            succeeded = checked_flags(await move(job.keys, rows), len(job.keys))
            await self._run_take_back(rows)
        except BaseException as error:  # whatever it is, the job has one result and the loop lives on
            fault = text_of(error)
            await self._run_take_back(rows, error)
        self._outbox.append(JobResult(job.job_id, succeeded, fault))

    async def _run_take_back(self, rows: Sequence[memoryview], error: BaseException | None = None) -> None:
        await (take_back(rows) if error is None else take_back_after(error, rows))

    async def _run_lookup(self, batch: int, keys: tuple[OffloadKey, ...]) -> None:
        found: dict[OffloadKey, Answer]
        try:
            found = dict(zip(keys, checked_flags(await self._tier.lookup(keys), len(keys)), strict=True))
        except BaseException as error:  # every question has an answer and the loop lives on
            found = dict.fromkeys(keys, text_of(error))
        self._outbox.append(_Answers(batch, found))

    async def _run_touch(self, keys: Sequence[OffloadKey]) -> None:
        if self._touch is None:
            return
        try:
            self._touch(keys)
        except BaseException as error:  # nobody waits for it
            self._touch = None
            logger.warning("tier %s hears no more of what requests use: touch raised %s", self.name, text_of(error))

    async def _run_list_keys(self) -> list[OffloadKey]:
        try:
            return [key async for key in self._tier.keys()]  # noqa: SIM118  (a tier is no mapping)
        except NotImplementedError:
            return []

    async def _run_close(self) -> None:
        self._run_inbox()
        while self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._tier.close()
        finally:
            self._has_ended = True


_Move = Callable[[Sequence[OffloadKey], Sequence[memoryview]], Awaitable[list[bool]]]


class _Evicted(NamedTuple):
    keys: tuple[OffloadKey, ...]


class _Stored(NamedTuple):
    keys: tuple[OffloadKey, ...]


class _Corrupt(NamedTuple):
    num_chunks: int


class _Answers(NamedTuple):
    batch: int
    found: dict[OffloadKey, Answer]


def _only_keys(keys: Sequence[OffloadKey]) -> tuple[OffloadKey, ...]:
    """Refuse a wrong report where it is made: taken up with others, it would cost them."""
    reported = tuple(keys)
    if not all(isinstance(key, bytes) for key in reported):
        raise TypeError(f"offload keys expected, not {keys!r:.100}")
    return reported
