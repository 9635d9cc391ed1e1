"""A tier that works in Python on every chunk it loads, as one does that unpacks or deciphers without a library."""

from __future__ import annotations

from collections.abc import Sequence

from tiering.keys import OffloadKey
from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
from tiering.tier import Tier, hookimpl

__all__ = ["BusyConfig", "BusyTier", "tiering_register_tier"]

_BYTES_LOOKED_AT = 10_000


class BusyConfig(MemoryTierConfig):
    """Settings of a `BusyTier`."""

    type: str = "busy"  # type: ignore[assignment]


class BusyTier(MemoryTier):
    """Keeps chunks in memory, and takes about half a millisecond of Python for each one it loads."""

    tier_type = "busy"
    config_type = BusyConfig

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.load`; the work is done on a thread, as the contract asks."""
        loaded = await super().load(keys, rows)
        for row in rows:
            await self.context.run_blocking(_look_at, row)
        return loaded


def _look_at(row: memoryview) -> int:
    parity = 0
    for byte in row[:_BYTES_LOOKED_AT]:
        parity ^= byte
    return parity


@hookimpl
def tiering_register_tier() -> type[Tier]:
    """Return the tier."""
    return BusyTier
