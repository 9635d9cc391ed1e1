"""Multi-tier KV-cache offloading for LLM serving engines.

Importing this package imports nothing else: each public name is loaded from its module when it is first used, so a
worker that only moves bytes never loads what configures the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering.config import TieringConfig
    from tiering.config_file import load_config, parse_config
    from tiering.engine_config import EngineConfig, KVGroup
    from tiering.events import OffloadingEvent
    from tiering.keys import OffloadKey, get_offload_block_hash, get_offload_group_idx, make_offload_key
    from tiering.manager import TieringOffloadingManager
    from tiering.offloading_manager import LookupStatus, OffloadingManager, PrefixLookup
    from tiering.primary import CPUOffloadingManager, CPUPrimaryTierOffloadingManager
    from tiering.region import SharedOffloadRegion
    from tiering.registry import SecondaryTierFactory
    from tiering.request import ReqContext
    from tiering.reuse_filter import FilterReusedOffloadingManager
    from tiering.secondary_tier import SecondaryTierManager
    from tiering.specs.cpu import CPUOffloadingSpec
    from tiering.specs.factory import OffloadingSpecFactory
    from tiering.specs.offloading_spec import OffloadingSpec
    from tiering.specs.tiering import TieringOffloadingSpec
    from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec, PrepareStoreOutput

__all__ = [
    "CPULoadStoreSpec",
    "CPUOffloadingManager",
    "CPUOffloadingSpec",
    "CPUPrimaryTierOffloadingManager",
    "EngineConfig",
    "FilterReusedOffloadingManager",
    "GPULoadStoreSpec",
    "KVGroup",
    "LookupStatus",
    "OffloadKey",
    "OffloadingEvent",
    "OffloadingManager",
    "OffloadingSpec",
    "OffloadingSpecFactory",
    "PrefixLookup",
    "PrepareStoreOutput",
    "ReqContext",
    "SecondaryTierFactory",
    "SecondaryTierManager",
    "SharedOffloadRegion",
    "TieringConfig",
    "TieringOffloadingManager",
    "TieringOffloadingSpec",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "load_config",
    "make_offload_key",
    "parse_config",
]

_HOME = {
    "TieringConfig": "tiering.config",
    "load_config": "tiering.config_file",
    "parse_config": "tiering.config_file",
    "EngineConfig": "tiering.engine_config",
    "KVGroup": "tiering.engine_config",
    "OffloadingEvent": "tiering.events",
    "OffloadKey": "tiering.keys",
    "get_offload_block_hash": "tiering.keys",
    "get_offload_group_idx": "tiering.keys",
    "make_offload_key": "tiering.keys",
    "TieringOffloadingManager": "tiering.manager",
    "LookupStatus": "tiering.offloading_manager",
    "OffloadingManager": "tiering.offloading_manager",
    "PrefixLookup": "tiering.offloading_manager",
    "CPUOffloadingManager": "tiering.primary",
    "CPUPrimaryTierOffloadingManager": "tiering.primary",
    "SharedOffloadRegion": "tiering.region",
    "SecondaryTierFactory": "tiering.registry",
    "ReqContext": "tiering.request",
    "FilterReusedOffloadingManager": "tiering.reuse_filter",
    "SecondaryTierManager": "tiering.secondary_tier",
    "CPUOffloadingSpec": "tiering.specs.cpu",
    "OffloadingSpecFactory": "tiering.specs.factory",
    "OffloadingSpec": "tiering.specs.offloading_spec",
    "TieringOffloadingSpec": "tiering.specs.tiering",
    "CPULoadStoreSpec": "tiering.transfer_specs",
    "GPULoadStoreSpec": "tiering.transfer_specs",
    "PrepareStoreOutput": "tiering.transfer_specs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiering' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
