"""The object tier: chunks as objects in a store that many engines share (see ``docs/object-tier.md``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiering.tier import hookimpl

if TYPE_CHECKING:
    from tiers.s3.tier import S3Tier

__all__ = ["tiering_register_tier"]


@hookimpl
def tiering_register_tier() -> type[S3Tier]:
    """Return the tier class; its modules are imported only now, and its client library when a tier is made."""
    from tiers.s3.tier import S3Tier  # noqa: PLC0415

    return S3Tier
