"""The second name of the object tier: ``type: fsspec`` keeps the same objects in any fsspec file system."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiering.tier import hookimpl

if TYPE_CHECKING:
    from tiers.s3.tier import FsspecTier

__all__ = ["tiering_register_tier"]


@hookimpl
def tiering_register_tier() -> type[FsspecTier]:
    """Return the tier class; its modules are imported only now."""
    from tiers.s3.tier import FsspecTier  # noqa: PLC0415

    return FsspecTier
