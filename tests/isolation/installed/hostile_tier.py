"""A tier that does what no tier should do: the deed of its configuration, in each load, as long as a file is there."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
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

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        if self.config.while_exists.exists():
            DEEDS[self.config.deed](rows)
        return await super().load(keys, rows)


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
    "block": block,
    "print garbage": print_garbage,
    "write garbage to the engine": write_garbage_to_the_engine,
    "hang up and write on": hang_up_and_write_on,
}

_leaked: list[object] = []


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return HostileTier
