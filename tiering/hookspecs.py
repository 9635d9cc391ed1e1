"""The two hooks through which tiers and eviction policies come in.

A plugin is a module (or object) named by an entry point of the group ``tiering.tiers`` or ``tiering.policies``; the
entry point's name is what users write in their configuration. The module holds one function::

    @hookimpl
    def tiering_register_tier():
        from my_tier.tier import MyTier  # heavy imports belong in here: the module itself should stay light

        return MyTier
"""

from __future__ import annotations

import pluggy

from tiering.policies.policy import EvictionPolicy
from tiering.tier import Tier

__all__ = ["tiering_register_policy", "tiering_register_tier"]

_hookspec = pluggy.HookspecMarker("tiering")


@_hookspec(firstresult=True)
def tiering_register_tier() -> type[Tier]:
    """Return the tier's class. Called once per look-up, on the thread that reads the configuration."""
    raise NotImplementedError


@_hookspec(firstresult=True)
def tiering_register_policy() -> type[EvictionPolicy]:
    """Return the eviction policy's class. Called once per look-up, on the thread that reads the configuration."""
    raise NotImplementedError
