"""Specs: how an engine builds the manager in its scheduler and the handlers in its workers."""

from __future__ import annotations

from tiering.specs.factory import OffloadingSpecFactory
from tiering.specs.offloading_spec import OffloadingSpec

__all__ = ["OffloadingSpec", "OffloadingSpecFactory"]
