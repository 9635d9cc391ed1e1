"""A tier whose work is done in another process, as the event loop of the engine's process sees it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import pickle
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any

from tiering.errors import PermanentTierError, TemporaryTierError, text_of
from tiering.isolation.channel import ChannelBrokenError, Message
from tiering.isolation.process_output import ProcessOutput
from tiering.isolation.restart_delays import RestartDelays
from tiering.isolation.tier_host import HostStart
from tiering.isolation.tier_process import TierProcess
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext, TierUsage

__all__ = ["RemoteTier"]

logger = logging.getLogger(__name__)

_EXIT_SECONDS = 5.0
"""How long a process whose tier is closed may take to end before it is killed."""
_LEAST_REOPEN_SECONDS = 60.0


class RemoteTier(Tier):
    """Starts a tier's process, passes calls on to it, and starts it again when it has ended.

    Its "rows" are row numbers: the other process has the memory. Every call has one end: the answer of the other
    process, or a `TemporaryTierError` once that process is gone and nothing of it can touch a row any more. While it
    is gone, calls fail at once. A call that is open for ``patience_seconds`` shows that the process is stuck: it is
    killed. So is one that was started again and has not opened the tier for ``reopen_seconds``, by default ten times as
    long as the first one took, and a minute at least.

    The answers to `contains` come from a mirror of the tier's index, made from the same reports as KV events: so hits
    promote in the step in which they are looked up, and the scheduler waits for nothing. After a restart the mirror
    keeps what the tier still holds; what it lost is reported as evicted.

    Attributes:
        num_ends: how often the process has ended by itself.
        pid: its process id; that of the last one while there is none.
        contains, touch: there once the tier is open, if the tier in the other process has them.
    """

    tier_type = "process"
    contains: Callable[[OffloadKey], bool]
    touch: Callable[[Sequence[OffloadKey]], None]

    def __init__(
        self,
        start: HostStart,
        context: TierContext,
        rows_fd: int,
        restart_delays: RestartDelays,
        *,
        patience_seconds: float,
        reopen_seconds: float | None,
    ) -> None:
        super().__init__(start.config, context)
        self.num_ends = 0
        self.pid = 0
        self._start = pickle.dumps(start)
        self._rows_fd = rows_fd
        self._restart_delays = restart_delays
        self._patience_seconds = patience_seconds
        self._reopen_seconds = reopen_seconds
        self._output = ProcessOutput(start.name)
        self._process: TierProcess | None = None
        self._is_serving = False
        self._serving_since = 0.0
        self._is_ending = False
        self._fault = "its process has not started"
        self._description = ""
        self._held: set[OffloadKey] = set()
        self._found: set[OffloadKey] = set()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_numbers = itertools.count()

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the process; returns when the tier in it is open.

        Raises:
            PermanentTierError: with what the tier raised, or how the process ended; it is gone.
        """
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._keeper = self._loop.create_task(self._keep_running())
        began = time.monotonic()
        await self._opened
        if self._reopen_seconds is None:
            self._reopen_seconds = max(_LEAST_REOPEN_SECONDS, 10 * (time.monotonic() - began))

    def begin_end(self, drain_seconds: float) -> None:
        """Start the process no more, and kill it if it has not ended after ``drain_seconds``."""
        self._is_ending = True
        self._loop.call_later(drain_seconds, self.kill)

    async def close(self) -> None:
        """Close the tier in the process and wait until the process is gone.

        Raises:
            TierError: what closing the tier raised; the process is gone all the same.
        """
        self._is_ending = True
        try:
            if self._is_serving:
                await self._call("close")
        finally:
            if self._process is None:
                self._keeper.cancel()  # it waits for the next start
            elif not self._is_serving:
                self.kill()
            with suppress(asyncio.CancelledError):
                await self._keeper

    def kill(self) -> None:
        """Kill the process, if there is one. From any thread."""
        process = self._process
        if process is not None:
            process.kill()

    def kill_for_good(self) -> None:
        """Kill the process and wait until it is gone; no other is started. From any thread, when nobody can `close`."""
        self._is_ending = True
        process = self._process
        if process is not None:
            process.kill()
            process.wait()

    async def _keep_running(self) -> None:
        while True:
            self._serving_since = math.inf
            try:
                self._fault = await self._run_once()
            except Exception as error:  # of starting it; a tier must not be lost for that
                self._fault = f"its process cannot be run: {text_of(error)}"
            if not self._opened.done():
                self._opened.set_exception(PermanentTierError(f"tier {self.context.name!r}: {self._fault}"))
                return
            self._fail_calls()
            if self._is_ending:
                return
            self.num_ends += 1
            delay = self._restart_delays.after(time.monotonic() - self._serving_since)
            logger.warning("tier %s: %s; next start in %.1f s", self.context.name, self._fault, delay)
            await asyncio.sleep(delay)

    async def _run_once(self) -> str:
        """Run the process from start to end; return what is to be said about it. It is gone then."""
        process = await TierProcess.start(self.context.name, self._rows_fd, self._output, self.context.run_blocking)
        self._process, self.pid = process, process.pid
        self._found = set()
        fault = ""
        reopen_seconds = self._reopen_seconds or _LEAST_REOPEN_SECONDS
        must_be_open = self._loop.time() + reopen_seconds if self._opened.done() else None
        try:
            process.channel.send((self._start,))
            while not fault:
                async with asyncio.timeout_at(None if self._is_serving else must_be_open):
                    messages = await process.channel.receive()
                for message in messages:
                    fault = fault or self._take(message)
        except EOFError:
            pass
        except TimeoutError:
            fault = f"its process has not opened the tier in {reopen_seconds:.1f} s"
        except ChannelBrokenError as error:
            fault = f"its process sent {error}"
        finally:
            is_closed, self._is_serving = self._is_serving and self._is_ending, False
            ended = await process.end(_EXIT_SECONDS if is_closed else 0.0)
            self._process = None
        return fault or f"its process {ended}"

    def _take(self, message: Message) -> str:
        """Take up one message; return the fault it tells of, or nothing."""
        match message:
            case ("answer", int(number), value):
                if number in self._calls:
                    self._calls.pop(number).set_result(value)
            case ("error", int(number), bool(temporary), str(text)):
                if number in self._calls:
                    error = TemporaryTierError(text) if temporary else PermanentTierError(text)
                    self._calls.pop(number).set_exception(error)
            case ("held", tuple(keys), bytes(flags)) if len(keys) == len(flags):
                self._note_held(keys, flags)
            case ("back", tuple(keys)):
                self._report(self.context.report_stored, keys)
            case ("corrupt", tuple(keys)):
                self._report(self.context.report_corrupt, keys)
            case ("open", bool(is_mirrored), bool(tracks_recency), str(description)):
                self._note_open(is_mirrored, tracks_recency, description)
            case ("failed", bool(), str(text)):
                return text
            case _:
                return f"its process sent the message {message!r:.100}"
        return ""

    def _note_open(self, is_mirrored: bool, tracks_recency: bool, description: str) -> None:
        self._description = description
        if not self._opened.done():
            self._held = self._found
            if is_mirrored:
                self.contains = self._holds
            if tracks_recency:
                self.touch = self._send_touch
            self._opened.set_result(None)
        else:
            lost = tuple(self._held - self._found)
            # Never more than was announced: what else is there was being stored when the last process ended.
            self._held &= self._found
            if lost:
                self.context.report_evicted(lost)
            logger.warning("tier %s: runs again, in process %d: %s", self.context.name, self.pid, description)
        self._found = set()
        self._serving_since = time.monotonic()
        self._is_serving = True

    def _note_held(self, keys: tuple[OffloadKey, ...], flags: bytes) -> None:
        held = self._held if self._is_serving else self._found
        held.update(itertools.compress(keys, flags))
        gone = tuple(key for key, is_held in zip(keys, flags, strict=True) if not is_held)
        held.difference_update(gone)
        self._report(self.context.report_evicted, gone)

    def _report(self, report: Callable[[Sequence[OffloadKey]], None], keys: tuple[OffloadKey, ...]) -> None:
        """Pass a report on, unless it is about what a tier being opened finds, of which `_note_open` makes its own."""
        if keys and self._is_serving:
            # In the next turn, behind the answers that came before: their stores must not be announced after this.
            self._loop.call_soon(report, keys)

    # -- data -------------------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return list(await self._call("lookup", keys))

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return list(await self._call("store", keys, rows))

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return list(await self._call("load", keys, rows))

    async def usage(self) -> TierUsage:
        return TierUsage(*await self._call("usage"))

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        await self._call("delete", keys)

    async def keys(self) -> AsyncIterator[OffloadKey]:
        for key in tuple(self._held):
            yield key

    def describe(self) -> str:
        return f"in process {self.pid}: {self._description or 'open'}"

    def _holds(self, key: OffloadKey) -> bool:
        return self._is_serving and key in self._held

    def _send_touch(self, keys: Sequence[OffloadKey]) -> None:
        if self._is_serving and self._process is not None:
            self._process.channel.send((-1, "touch", tuple(keys), ()))

    async def _call(self, method: str, keys: Sequence[OffloadKey] = (), rows: Sequence[Any] = ()) -> Any:
        if not self._is_serving or self._process is None:
            raise TemporaryTierError(self._fault)
        number = next(self._call_numbers)
        answer = self._calls[number] = self._loop.create_future()
        stuck = self._loop.call_later(self._patience_seconds, self.kill)
        self._process.channel.send((number, method, tuple(keys), tuple(rows)))
        try:
            return await answer
        finally:
            stuck.cancel()

    def _fail_calls(self) -> None:
        calls, self._calls = self._calls, {}
        for answer in calls.values():
            answer.set_exception(TemporaryTierError(self._fault))
