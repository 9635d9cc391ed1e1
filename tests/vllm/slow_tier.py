"""A tier in memory that takes its time over everything, lookups too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tiering.keys import OffloadKey
from tiering.tier import Tier, TierConfig, TierContext, hookimpl


class SlowTierConfig(TierConfig):
    """Settings of a `SlowTier`."""

    type: Literal["slow"] = "slow"
    seconds: float = Field(default=0.0, ge=0, description="how long each call takes")
    load_seconds: float = Field(default=0.0, ge=0, description="how much longer a load takes")


class SlowTier(Tier):
    """Keeps copies of rows in a dict."""

    tier_type = "slow"
    config_type = SlowTierConfig

    def __init__(self, config: SlowTierConfig, context: TierContext) -> None:
        super().__init__(config, context)
        self._objects: dict[OffloadKey, np.ndarray] = {}
        self._seconds = config.seconds
        self._load_seconds = config.load_seconds

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        await asyncio.sleep(self._seconds)
        return [key in self._objects for key in keys]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        await asyncio.sleep(self._seconds)
        for key, row in zip(keys, rows, strict=True):
            self._objects[key] = np.frombuffer(row, np.uint8).copy()
        return [True] * len(keys)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        await asyncio.sleep(self._seconds + self._load_seconds)
        for key, row in zip(keys, rows, strict=True):
            np.copyto(np.frombuffer(row, np.uint8), self._objects[key])
        return [True] * len(keys)

    async def keys(self) -> AsyncIterator[OffloadKey]:
        for key in list(self._objects):
            yield key


@hookimpl
def tiering_register_tier() -> type[SlowTier]:
    """Offer the tier."""
    return SlowTier
