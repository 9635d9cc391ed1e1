"""A tier that breaks its promise: it says that rows were loaded, and they hold other bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tiering.keys import OffloadKey
from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
from tiering.tier import Tier, hookimpl


class SpoilingConfig(MemoryTierConfig):
    type: str = "spoiling"


class SpoilingTier(MemoryTier):
    tier_type = "spoiling"
    config_type = SpoilingConfig

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """Leave every second row with the chunk it held before, and flip one bit in the others."""
        await super().load(keys[::2], rows[::2])
        for row in rows[::2]:
            np.frombuffer(row, np.uint8)[-1] ^= 1
        return [True] * len(keys)


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return SpoilingTier
