"""The shared region: the CPU memory of one engine, mapped by its scheduler and all its workers."""

from tiering.region.layout import RegionLayout
from tiering.region.reclaim import reclaim_dead_regions
from tiering.region.shared_region import SharedOffloadRegion

__all__ = ["RegionLayout", "SharedOffloadRegion", "reclaim_dead_regions"]
