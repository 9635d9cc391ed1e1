"""Parts for testing what is built on this project: suites of rules, real tiers in memory, faults, and leak finders.

`TierTests` and `PolicyTests` are subclassed in a test module and prove a tier or a policy; `ManagerMachine` plays
random histories. A test of one's own builds a manager over `PlainRows` with a `ScriptedTier` below it, plays the engine
(rows are filled with `fill_row` and compared with `row_matches`), and ends with `drain` and `check_quiescent`.

Importing this package imports nothing else; each name is loaded from its module when it is first used. `ManagerMachine`
and `run_machine` need hypothesis; nothing here needs pytest, whose plugin `tiering.testing.pytest_plugin` makes the
suites' failures readable.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering.testing.fault_schedule import CONTAINED_FAULTS, Fault, FaultSchedule
    from tiering.testing.faulty_tier import FaultyTier
    from tiering.testing.guarded_rows import GuardedRows
    from tiering.testing.manager_machine import ManagerMachine, run_machine
    from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig
    from tiering.testing.patterns import fill_row, key_pattern, row_matches
    from tiering.testing.plain_rows import PlainRows
    from tiering.testing.policy_suite import PolicyTests
    from tiering.testing.quiescence import NotQuiescentError, check_quiescent
    from tiering.testing.remembered import container_sizes
    from tiering.testing.resource_watch import LeakError, ResourceWatch
    from tiering.testing.scripted_tier import Call, ScriptedTier
    from tiering.testing.stepper import Step, SteppedTier, Stepper
    from tiering.testing.stepping import drain
    from tiering.testing.tier_suite import Ability, TierSession, TierTests
    from tiering.testing.tier_wrapper import TierWrapper

__all__ = [
    "CONTAINED_FAULTS",
    "Ability",
    "Call",
    "Fault",
    "FaultSchedule",
    "FaultyTier",
    "GuardedRows",
    "LeakError",
    "ManagerMachine",
    "MemoryTier",
    "MemoryTierConfig",
    "NotQuiescentError",
    "PlainRows",
    "PolicyTests",
    "ResourceWatch",
    "ScriptedTier",
    "Step",
    "SteppedTier",
    "Stepper",
    "TierSession",
    "TierTests",
    "TierWrapper",
    "check_quiescent",
    "container_sizes",
    "drain",
    "fill_row",
    "key_pattern",
    "row_matches",
    "run_machine",
]

_HOME = {
    "container_sizes": "remembered",
    "CONTAINED_FAULTS": "fault_schedule",
    "Fault": "fault_schedule",
    "FaultSchedule": "fault_schedule",
    "FaultyTier": "faulty_tier",
    "GuardedRows": "guarded_rows",
    "ManagerMachine": "manager_machine",
    "run_machine": "manager_machine",
    "MemoryTier": "memory_tier",
    "MemoryTierConfig": "memory_tier",
    "fill_row": "patterns",
    "key_pattern": "patterns",
    "row_matches": "patterns",
    "PlainRows": "plain_rows",
    "PolicyTests": "policy_suite",
    "NotQuiescentError": "quiescence",
    "check_quiescent": "quiescence",
    "LeakError": "resource_watch",
    "ResourceWatch": "resource_watch",
    "Call": "scripted_tier",
    "ScriptedTier": "scripted_tier",
    "Step": "stepper",
    "SteppedTier": "stepper",
    "Stepper": "stepper",
    "drain": "stepping",
    "Ability": "tier_suite",
    "TierSession": "tier_suite",
    "TierTests": "tier_suite",
    "TierWrapper": "tier_wrapper",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiering.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tiering.testing.{_HOME[name]}"), name)
