"""A tier around another one that goes wrong by schedule."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import math
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from tiering.errors import PermanentTierError, TemporaryTierError
from tiering.keys import OffloadKey
from tiering.testing.fault_schedule import Fault, FaultSchedule
from tiering.testing.tier_wrapper import TierWrapper
from tiering.tier import Tier

__all__ = ["FaultyTier"]

_EXCEPTIONS = (ValueError, MemoryError, TimeoutError, KeyError, StopIteration, TemporaryTierError, PermanentTierError)
_BASE_EXCEPTIONS = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)

Rows = Sequence[memoryview]
_Move = Callable[[Sequence[OffloadKey], Rows], Awaitable[list[bool]]]


class FaultyTier(TierWrapper):
    """Disturbs the calls of lookup, store and load, in the order in which they come.

    Attributes:
        schedule: which call goes wrong and how.
        is_on: whether it does; calls are counted all the same.
        num_calls: calls so far.
        faults: how often each fault has happened.
    """

    def __init__(self, inner: Tier, schedule: FaultSchedule, *, is_on: bool = True) -> None:
        super().__init__(inner)
        self.schedule = schedule
        self.is_on = is_on
        self.num_calls = 0
        self.faults: Counter[Fault] = Counter()

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate = asyncio.Event()
        await super().open()

    def release(self) -> None:
        """Let everything that is stuck or late go on. From any thread, while the tier is open."""
        self._loop.call_soon_threadsafe(self._release)

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        async def look(keys: Sequence[OffloadKey], _rows: Rows) -> list[bool]:
            return await self.inner.lookup(keys)

        return await self._call(look, keys, [memoryview(b"")] * len(keys))

    async def store(self, keys: Sequence[OffloadKey], rows: Rows) -> list[bool]:
        return await self._call(self.inner.store, keys, rows)

    async def load(self, keys: Sequence[OffloadKey], rows: Rows) -> list[bool]:
        return await self._call(self.inner.load, keys, rows)

    async def _call(self, move: _Move, keys: Sequence[OffloadKey], rows: Rows) -> list[bool]:
        number, self.num_calls = self.num_calls, self.num_calls + 1
        fault = self.schedule.fault_of(number) if self.is_on else None
        if fault is None:
            return await move(keys, rows)
        self.faults[fault] += 1
        draw = self.schedule.random_of(number)
        draw.random()  # the draw that chose the fault
        return await self._go_wrong(fault, draw, move, keys, rows)

    async def _go_wrong(
        self, fault: Fault, draw: random.Random, move: _Move, keys: Sequence[OffloadKey], rows: Rows
    ) -> list[bool]:
        is_load = move == self.inner.load
        match fault:
            case Fault.DELAY:
                await asyncio.sleep(draw.random() * self.schedule.delay_seconds)
            case Fault.DROP:
                return [False] * len(keys)
            case Fault.PARTIAL:
                return await self._do_part(draw, move, keys, rows)
            case Fault.MISCOUNT:
                answers = await move(keys, rows)
                wrong: list[Any] = [answers[:-1], [*answers, True], None]
                return draw.choice(wrong)
            case Fault.NO_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case Fault.RAISE | Fault.RAISE_BASE:
                await self._do_part(draw, move, keys, rows)
                raise draw.choice(_EXCEPTIONS if fault is Fault.RAISE else _BASE_EXCEPTIONS)("injected")
            case Fault.STUCK:
                await self._wait_for_release()
            case Fault.LATE_WRITE if is_load:
                return await self._load_late(keys, rows)
            case Fault.FLIP:
                return await self._move_flipped(draw, move, keys, rows)
            case Fault.WRITE_OUTSIDE if is_load:
                for row in rows:
                    address = np.asarray(row).ctypes.data + len(row)
                    ctypes.memset(address, ctypes.c_ubyte.from_address(address).value ^ 0xFF, 1)
            case Fault.CRASH:
                under_way = asyncio.ensure_future(move(keys, rows))
                for _ in range(draw.randrange(8)):
                    await asyncio.sleep(0)
                under_way.cancel()
                os.kill(os.getpid(), signal.SIGKILL)
        return await move(keys, rows)

    async def _do_part(self, draw: random.Random, move: _Move, keys: Sequence[OffloadKey], rows: Rows) -> list[bool]:
        chosen = {number for number in range(len(keys)) if draw.random() < 0.5}
        part = await move([keys[number] for number in sorted(chosen)], [rows[number] for number in sorted(chosen)])
        done = iter(part)
        for number, row in enumerate(rows):
            if number not in chosen and move == self.inner.load:
                half = np.asarray(row)[: len(row) // 2]
                half[:] = draw.randrange(256)
        return [number in chosen and next(done) for number in range(len(keys))]

    async def _load_late(self, keys: Sequence[OffloadKey], rows: Rows) -> list[bool]:
        aside = [memoryview(bytearray(len(row))) for row in rows]
        answers = await self.inner.load(keys, aside)
        await self._wait_for_release()
        for row, found in zip(rows, aside, strict=True):
            np.asarray(row)[:] = np.asarray(found)
        return answers

    async def _move_flipped(
        self, draw: random.Random, move: _Move, keys: Sequence[OffloadKey], rows: Rows
    ) -> list[bool]:
        if move == self.inner.store:
            rows = [memoryview(bytearray(row)) for row in rows]
            self._flip(draw, rows)
        answers = await move(keys, rows)
        if move == self.inner.load:
            self._flip(draw, rows)
        return answers

    @staticmethod
    def _flip(draw: random.Random, rows: Rows) -> None:
        row = draw.choice(rows)
        if row:
            np.asarray(row)[draw.randrange(len(row))] ^= 1 << draw.randrange(8)

    async def _wait_for_release(self) -> None:
        seconds = self.schedule.stuck_seconds
        try:
            await asyncio.wait_for(self._gate.wait(), None if math.isinf(seconds) else seconds)
        except TimeoutError:
            return

    def _release(self) -> None:
        gate, self._gate = self._gate, asyncio.Event()
        gate.set()
