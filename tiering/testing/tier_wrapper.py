"""A tier around another one, which forwards everything: what tiers for tests that disturb or delay are built on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from tiering.keys import OffloadKey
from tiering.tier import KnowsKeys, Tier, TierUsage, TracksRecency

__all__ = ["TierWrapper"]


class TierWrapper(Tier):
    """Has the members of the tier inside, the optional ones too: none of the inner's is hidden by a default.

    Attributes:
        inner: the tier inside.
    """

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner.config, inner.context)
        self.inner = inner
        # Class attributes elsewhere; here they are the inner tier's.
        self.__dict__.update(tier_type=inner.tier_type, config_type=inner.config_type, api_version=inner.api_version)
        # Whether a tier has these decides how the core asks it, so they must be absent where the inner lacks them.
        if isinstance(inner, KnowsKeys):
            self.contains = inner.contains
        if isinstance(inner, TracksRecency):
            self.touch = inner.touch

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return await self.inner.lookup(keys)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return await self.inner.store(keys, rows)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return await self.inner.load(keys, rows)

    async def usage(self) -> TierUsage:
        return await self.inner.usage()

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        await self.inner.delete(keys)

    def keys(self) -> AsyncIterator[OffloadKey]:
        return self.inner.keys()

    def describe(self) -> str:
        return self.inner.describe()
