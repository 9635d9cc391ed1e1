"""Calls into a native library, which has threads of its own: none may be under way when the interpreter ends.

A native thread that reports a result to an interpreter on its way out aborts the process.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

from tiering.errors import TemporaryTierError

__all__ = ["NativeCalls"]

R = TypeVar("R")

_SECONDS_TO_END = 2.0

_OPEN: WeakSet[NativeCalls] = WeakSet()


class NativeCalls:
    """The native calls of one client; made on its event loop."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[object]] = set()
        self._is_ending = False
        self._ended = threading.Event()
        _OPEN.add(self)

    async def run(self, call: Awaitable[R]) -> R:
        """Wait for one native call; at the end of the interpreter it is cancelled.

        Raises:
            TemporaryTierError: the interpreter is ending; the call was not awaited.
        """
        task = asyncio.current_task()
        if self._is_ending or task is None:
            raise TemporaryTierError("the interpreter is ending")
        self._tasks.add(task)
        try:
            return await call
        finally:
            self._tasks.discard(task)
            self._note_end()

    def end(self) -> None:
        """Cancel what is under way, and wait for it for a short time. From any thread but the loop's."""
        if self._pid != os.getpid():
            return  # a parent's calls are not here
        with suppress(RuntimeError):  # the loop is closed, with nothing under way
            self._loop.call_soon_threadsafe(self._cancel_all)
            if self._loop.is_running():
                self._ended.wait(_SECONDS_TO_END)

    def _cancel_all(self) -> None:
        self._is_ending = True
        for task in self._tasks:
            task.cancel()
        self._note_end()

    def _note_end(self) -> None:
        if self._is_ending and not self._tasks:
            self._ended.set()


def _end_all() -> None:
    for calls in list(_OPEN):
        calls.end()


atexit.register(_end_all)
