"""A tier that can say what it has only when it is asked, as object stores do."""

from __future__ import annotations

from collections.abc import Sequence

from tiering.keys import OffloadKey
from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
from tiering.tier import Tier, TierConfig, TierContext, hookimpl


class IndexlessConfig(TierConfig):
    type: str = "indexless"


class IndexlessTier(Tier):
    tier_type = "indexless"
    config_type = IndexlessConfig

    def __init__(self, config: IndexlessConfig, context: TierContext) -> None:
        super().__init__(config, context)
        self._memory = MemoryTier(MemoryTierConfig(), context)

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return await self._memory.lookup(keys)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return await self._memory.store(keys, rows)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return await self._memory.load(keys, rows)


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return IndexlessTier
