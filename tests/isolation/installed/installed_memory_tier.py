"""Installs the tier in memory under its own name."""

from __future__ import annotations

from tiering.testing.memory_tier import MemoryTier
from tiering.tier import Tier, hookimpl


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return MemoryTier
