"""Parts for testing what is built on this project: real tiers in memory, and checks that find leaks.

A typical test builds a manager over `PlainRows` with a `ScriptedTier` below it, plays the engine (rows are filled with
`fill_row` and compared with `row_matches`), and ends with `drain` and `check_quiescent`.
"""

from __future__ import annotations

from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
from tiering.testing.patterns import fill_row, key_pattern, row_matches
from tiering.testing.plain_rows import PlainRows
from tiering.testing.quiescence import NotQuiescentError, check_quiescent
from tiering.testing.resource_watch import LeakError, ResourceWatch
from tiering.testing.scripted_tier import Call, ScriptedTier
from tiering.testing.stepping import drain

__all__ = [
    "Call",
    "LeakError",
    "MemoryTier",
    "MemoryTierConfig",
    "NotQuiescentError",
    "PlainRows",
    "ResourceWatch",
    "ScriptedTier",
    "check_quiescent",
    "drain",
    "fill_row",
    "key_pattern",
    "row_matches",
]
