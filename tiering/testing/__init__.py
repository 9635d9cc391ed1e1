"""Parts for testing what is built on this project: real tiers in memory, and checks that find leaks."""

from __future__ import annotations

from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig

__all__ = ["MemoryTier", "MemoryTierConfig"]
