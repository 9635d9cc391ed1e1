"""The marker that a plugin puts on its hook; offered to tiers by `tiering.tier`, to policies by their contract."""

from __future__ import annotations

import pluggy

__all__ = ["hookimpl"]

hookimpl = pluggy.HookimplMarker("tiering")
"""Marks a plugin's function as the implementation of the hook it is named after."""
