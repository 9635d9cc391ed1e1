"""A tier that does what no tier should do: the deed of its configuration, in each load, as long as a file is there."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tiering.keys import OffloadKey
from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
from tiering.tier import Tier, hookimpl

LEAKED_BYTES = 200 * 2**20


class HostileConfig(MemoryTierConfig):
    type: str = "hostile"
    deed: str
    while_exists: Path


class HostileTier(MemoryTier):
    tier_type = "hostile"
    config_type = HostileConfig

    async def open(self) -> None:
        if self.config.deed == "refuse" and self.config.while_exists.exists():
            raise ValueError("the moon is not full")
        if self.config.deed == "end in open":
            os._exit(7)
        if self.config.deed == "hang in open" and self.config.while_exists.exists():
            threading.Event().wait()

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        if self.config.while_exists.exists():
            match self.config.deed:
                case "lose all":
                    await self._lose_all()
                case "report corrupt":
                    self.context.report_corrupt(keys)
                    await self.delete(keys)
                case "answer with errors":
                    return [OSError("of a call that has failed") for _ in keys]  # type: ignore[misc]
                case "leave a call behind":
                    await asyncio.gather(self.context.run_blocking(self._write_late, rows[0][:]), self._fail())
                case deed:
                    DEEDS[deed](rows)
        return await super().load(keys, rows)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        if not self.config.while_exists.exists():
            self._get_all_back()
        return await super().store(keys, rows)

    def _write_late(self, row: memoryview) -> None:
        while self.config.while_exists.exists():
            time.sleep(0.001)
        row[:] = b"\xbb" * len(row)

    async def _fail(self) -> None:
        raise OSError("while the other call goes on")

    async def _lose_all(self) -> None:
        lost = dict(self.objects)
        await self.delete(list(lost))
        _lost.update(lost)

    def _get_all_back(self) -> None:
        back = [key for key in _lost if key not in self.objects]
        self.objects.update({key: _lost[key] for key in back})
        _lost.clear()
        self.context.report_stored(back)


def leak(rows: Sequence[memoryview]) -> None:
    _leaked.append(np.ones(LEAKED_BYTES, np.uint8))


def block(rows: Sequence[memoryview]) -> None:
    threading.Event().wait()


def hang_up_and_write_on(rows: Sequence[memoryview]) -> None:
    """The engine sees the end of the channel while this still writes."""
    os.closerange(3, 256)
    row = np.frombuffer(rows[0], np.uint8)
    while True:
        row[:] = 0xBB


def print_garbage(rows: Sequence[memoryview]) -> None:
    os.write(1, b"\x00\xffgarbage\n" * 10)
    print("more of it")


def print_without_end(rows: Sequence[memoryview]) -> None:
    for number in range(20_000):
        print(f"line {number} of a tier that talks a lot", flush=True)


def log(rows: Sequence[memoryview]) -> None:
    logger = logging.getLogger("hostile.words")
    logger.debug("not to be heard")
    logger.info("tier hostile: as the engine asks for it")
    try:
        raise ValueError("in two\nlines")
    except ValueError:
        logger.exception("went wrong in load %d", 1)
    print("and printed,", end=" ")


def write_garbage_to_the_engine(rows: Sequence[memoryview]) -> None:
    for fd in range(3, 64):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                os.write(fd, b"\xff" * 64)
        except OSError:
            continue


def raise_exit(rows: Sequence[memoryview]) -> None:
    sys.exit(3)


DEEDS: dict[str, Callable[[Sequence[memoryview]], object]] = {
    "exit": lambda rows: os._exit(3),
    "segfault": lambda rows: ctypes.string_at(0),
    "abort": lambda rows: os.abort(),
    "raise SystemExit": raise_exit,
    "leak": leak,
    "log": log,
    "print without end": print_without_end,
    "block": block,
    "print garbage": print_garbage,
    "write garbage to the engine": write_garbage_to_the_engine,
    "hang up and write on": hang_up_and_write_on,
}

_leaked: list[object] = []
_lost: dict[OffloadKey, bytes] = {}


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return HostileTier
