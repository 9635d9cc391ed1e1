"""The threads of one tier: an event loop for its coroutines, and daemon threads for its blocking calls.

They are one tier's alone, so whatever blocks, hangs or dies in them is felt by that tier only. They are daemon threads:
a call that never returns must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import logging
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from tiering.errors import TierError, text_of
from tiering.tier import P

__all__ = ["BlockingThreads", "JobLoop"]

logger = logging.getLogger(__name__)

R = TypeVar("R")


class JobLoop:
    """An event loop on a thread of its own, alive as long as somebody is attached to it.

    A second thread wakes it. To wake an event loop is a system call, during which a thread gives the interpreter away,
    and it may be milliseconds until it gets it back from the loop it has just woken: too long for a scheduler.
    """

    def __init__(self, name: str = "tiering-loop") -> None:
        self._name = name
        self._num_attached = 0
        self._is_ending = False

    def attach(self) -> None:
        """Count one more user; the first one starts the thread."""
        if self._num_attached == 0:
            self._is_ending = False
            self._loop = asyncio.new_event_loop()
            self._loop.set_exception_handler(_report)
            self._posted: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
            self._threads = [
                threading.Thread(target=self._run, name=self._name, daemon=True),
                threading.Thread(target=self._wake, name=f"{self._name}-waker", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        self._num_attached += 1

    def detach(self) -> None:
        """Count one user less; the last one ends the thread. Nothing of a user may run any more."""
        self._num_attached -= 1
        if self._num_attached == 0:
            self._is_ending = True
            self.post(self._loop.stop)
            self._posted.put(None)
            for thread in self._threads:
                thread.join()

    def post(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the loop thread soon. From any thread; waits for nothing and makes no system call."""
        self._posted.put(function)

    def wait_for(self, coroutine: Coroutine[Any, Any, R], timeout_seconds: float | None = None) -> R:
        """Run a coroutine on the loop and wait for its result. For start and shutdown, never within a step.

        Raises:
            TimeoutError: it has not ended in time. It goes on running.
            TierError: it has raised what would end this thread or process, such as SystemExit.
            Exception: what else it has raised.
        """
        return asyncio.run_coroutine_threadsafe(_harmless(coroutine), self._loop).result(timeout_seconds)

    def _wake(self) -> None:
        while (function := self._posted.get()) is not None:
            self._loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        while not self._is_ending:
            try:
                self._loop.run_forever()
            except BaseException:  # a task that raises SystemExit ends run_forever, but must not end the tier
                logger.exception("%s: a task tried to end the loop; the loop goes on", self._name)
        # Libraries (aiofiles) put calls on the loop's own threads; none of them is running any more.
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _harmless(coroutine: Coroutine[Any, Any, R]) -> R:
    try:
        return await coroutine
    except Exception:
        raise
    except BaseException as error:
        raise TierError(text_of(error)) from error


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report what went wrong on the loop, but for calls refused because the interpreter is ending: nobody waits."""
    if not concurrent.futures.thread._shutdown:
        loop.default_exception_handler(context)


class BlockingThreads:
    """Threads for blocking calls, started when they are needed, up to a limit."""

    def __init__(self, name: str, max_threads: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._num_open = 0

    def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
        """Begin ``function(*args, **kwargs)`` on one of the threads. Cancelling the future does not end the call.

        Raises:
            RuntimeError: the system has no thread left to start; nothing was begun.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        if self._num_open >= len(self._threads) and len(self._threads) < self._max_threads:
            name = f"{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)  # only now: a call must not wait for a thread that could not be started
        self._num_open += 1
        self._calls.put(partial(self._call, loop, future, partial(function, *args, **kwargs)))
        return future

    def end(self) -> None:
        """End the threads; every call must have returned."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # while the thread waits for the next one, it must keep nothing of this one in use

    def _call(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[R], function: Callable[[], R]) -> None:
        try:
            settle: Callable[[], None] = partial(self._settle, future, future.set_result, function())
        except BaseException as error:  # it is the awaiting coroutine's
            settle = partial(self._settle, future, future.set_exception, _raisable(error))
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            logger.warning("a blocking call has returned after its tier was closed")

    def _settle(self, future: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
        self._num_open -= 1  # only now: a call whose await was cancelled keeps its thread until it returns
        if not future.done():
            settle(outcome)


def _raisable(error: BaseException) -> BaseException:
    """StopIteration cannot be set on a future."""
    return RuntimeError(f"raised {error!r}") if isinstance(error, StopIteration) else error
