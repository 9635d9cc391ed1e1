"""A secondary tier in memory: small enough to read in a minute, real enough to pass every rule of the contract."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from tiering.keys import OffloadKey
from tiering.tier import Tier, TierConfig, TierContext, TierUsage

__all__ = ["MemoryTier", "MemoryTierConfig"]


class MemoryTierConfig(TierConfig):
    """Settings of a `MemoryTier`."""

    type: Literal["memory"] = "memory"
    max_chunks: int | None = Field(default=None, ge=1, description="chunks to keep; default: no bound")
    follow_requests: bool = Field(default=True, description="whether requests served elsewhere refresh a chunk")


class MemoryTier(Tier):
    """Keeps copies of rows in a dict, the least recently used first to go.

    The chunks of one call become the most recent ones, the first of the call most of all, so that the head of a
    prefix outlives its tail. An object of the wrong length is dropped when somebody wants to load it.

    Attributes:
        objects: what is kept; tests look at it, and spoil it, behind the tier's back.
    """

    tier_type = "memory"
    config_type = MemoryTierConfig

    def __init__(self, config: MemoryTierConfig, context: TierContext) -> None:
        super().__init__(config, context)
        self.objects: OrderedDict[OffloadKey, bytes] = OrderedDict()

    def contains(self, key: OffloadKey) -> bool:
        return key in self.objects

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        if self.config.follow_requests:
            self._refresh(keys)

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return [key in self.objects for key in keys]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        for key, row in zip(reversed(keys), reversed(rows), strict=True):
            if key not in self.objects:
                self.objects[key] = np.frombuffer(row, np.uint8).tobytes() if row else b""
            self.objects.move_to_end(key)
        evicted = []
        while self.config.max_chunks is not None and len(self.objects) > self.config.max_chunks:
            evicted.append(self.objects.popitem(last=False)[0])
        if evicted:
            self.context.report_evicted(evicted)
        return [key in self.objects for key in keys]

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        loaded, damaged = [], []
        for key, row in zip(keys, rows, strict=True):
            stored = self.objects.get(key)
            if stored is not None and len(stored) != len(row):
                damaged.append(key)
            elif stored:
                np.frombuffer(row, np.uint8)[:] = np.frombuffer(stored, np.uint8)
            loaded.append(stored is not None and len(stored) == len(row))
        await self.delete(damaged)
        self._refresh([key for key, done in zip(reversed(keys), reversed(loaded), strict=True) if done])
        return loaded

    async def usage(self) -> TierUsage:
        capacity = None if self.config.max_chunks is None else self.config.max_chunks * self.context.row_bytes
        return TierUsage(len(self.objects) * self.context.row_bytes, capacity, len(self.objects))

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        gone = [key for key in keys if self.objects.pop(key, None) is not None]
        if gone:
            self.context.report_evicted(gone)

    async def keys(self) -> AsyncIterator[OffloadKey]:
        for key in list(self.objects):
            yield key

    def _refresh(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            if key in self.objects:
                self.objects.move_to_end(key)
