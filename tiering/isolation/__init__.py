"""Tiers in processes of their own (``isolation: process``): what crashes, leaks or hogs there is not the engine's.

Only keys, row numbers and flags cross; the bytes stay in the shared region, which both processes map. In the engine's
process an `IsolatedTier` (`isolated_tier`) is a `tiering.jobs.TierWorker` like any other, around a `RemoteTier`
(`remote_tier`) instead of the tier itself. Its coroutines talk through a socket to a `TierHost` (`tier_host`), which
runs the real tier in the other process (`tier_process`).
"""

from __future__ import annotations

from tiering.isolation.isolated_tier import IsolatedTier
from tiering.isolation.restart_delays import RestartDelays

__all__ = ["IsolatedTier", "RestartDelays"]
