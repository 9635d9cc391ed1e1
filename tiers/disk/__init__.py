"""The disk tier: fixed slots in large slab files, found by an index in memory (see ``docs/disk-format.md``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiering.tier import hookimpl

if TYPE_CHECKING:
    from tiers.disk.tier import DiskTier

__all__ = ["tiering_register_tier"]


@hookimpl
def tiering_register_tier() -> type[DiskTier]:
    """Return the tier class; its modules are imported only now."""
    from tiers.disk.tier import DiskTier  # noqa: PLC0415

    return DiskTier
