"""Offloading to CPU memory and from there to secondary tiers (seed 004)."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tiering.build import namespace_of, open_secondary_tiers
from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.errors import ConfigError, RegionError
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.region import SharedOffloadRegion
from tiering.specs.cpu import CPUOffloadingSpec

if TYPE_CHECKING:
    from tiering.device import CanonicalKVCaches, CpuGpuOffloadingHandlers

__all__ = ["TieringOffloadingSpec"]


class TieringOffloadingSpec(CPUOffloadingSpec):
    """Device <-> rows of one shared region <-> secondary tiers.

    Attributes:
        region: this process's part of the shared region, once the manager or the handlers are built.
    """

    def __init__(self, engine: EngineConfig, config: TieringConfig) -> None:
        """See `CPUOffloadingSpec`.

        Raises:
            ConfigError: also if ``store_threshold`` is 2 or more: every promotion would be filtered as well.
        """
        if config.store_threshold >= 2:
            raise ConfigError(
                f"store_threshold: {config.store_threshold}: is not supported with secondary tiers; allowed: 0 or 1, "
                "or spec_name CPUOffloadingSpec"
            )
        super().__init__(engine, config)
        self.namespace = namespace_of(engine, self.block_size_factor, self.layout.row_bytes)
        self.region: SharedOffloadRegion | None = None
        self._tiering_manager: TieringOffloadingManager | None = None

    def get_manager(self) -> TieringOffloadingManager:
        if self._tiering_manager is None:
            self._tiering_manager = self.create_manager()
        return self._tiering_manager

    def shutdown(self) -> None:
        """See `OffloadingSpec.shutdown`. Where a tier could not be closed, the region is kept."""
        if self._tiering_manager is not None:
            self._tiering_manager.shutdown()
        super().shutdown()
        if self.region is not None:
            self.region.cleanup()

    def unlink_region(self) -> None:
        """Remove the region's name, once all workers have joined: whatever kills them, nothing is left behind.

        Raises:
            RegionError: not all have, and those who come later would find no region and make one of their own, in which
                nobody sees what they store. The name is kept.
        """
        if self.region is None:
            return
        if missing := self.region.missing_ranks():
            raise RegionError(
                f"{self.region.mmap_path} keeps its name: ranks {missing} have not joined; unlink it later"
            )
        self.region.unlink()

    def create_manager(self) -> TieringOffloadingManager:
        """Create or join the region as the scheduler, open the tiers, and join them in a manager.

        The manager's `shutdown` closes all of it.

        Raises:
            Exception: what failed first; everything opened before is closed again.
        """
        events = self.engine.enable_kv_events
        with ExitStack() as undo:
            region = self._open_region(None)
            undo.callback(region.cleanup)
            primary = CPUPrimaryTierOffloadingManager(self.num_blocks, self.eviction_policy, events, mmap_region=region)
            tiers = open_secondary_tiers(self.config, self.namespace, region, enable_events=events)
            undo.pop_all()
        self.region = region
        return TieringOffloadingManager(
            primary,
            tiers,
            row_bytes=self.layout.row_bytes,
            promotion_limit=self.config.promotion_limit,
            hold_limit=self.config.hold_limit,
            hold_seconds=self.config.hold_timeout,
            refill_faster_tiers=self.config.refill_faster_tiers,
        )

    def create_handlers(self, kv_caches: CanonicalKVCaches) -> CpuGpuOffloadingHandlers:
        """Create or join the region as this rank, and build its handlers over its column."""
        from tiering.device import CpuGpuOffloadingHandlers  # noqa: PLC0415  (torch, in workers only)

        if self.engine.rank is None:
            raise ConfigError("the engine's configuration names no rank: handlers belong to worker processes")
        with ExitStack() as undo:
            region = self._open_region(self.engine.rank)
            undo.callback(region.cleanup)
            handlers = CpuGpuOffloadingHandlers(
                kv_caches,
                self.block_size_factor,
                self.num_blocks,
                region,
                copy_threads=self.config.copy_threads,
                copy_cpus=self.config.copy_cpu_set,
            )
            undo.pop_all()
        self.region = region
        return handlers

    def _open_region(self, rank: int | None) -> SharedOffloadRegion:
        return SharedOffloadRegion(
            self.engine.engine_id,
            self.layout.total_bytes,
            self.num_blocks,
            rank,
            self.engine.num_columns,
            self.layout.worker_page_bytes,
            directory=self.config.region.directory,
            join_timeout=self.config.region.join_timeout,
            num_replicas=self.engine.kv_replicas,
            populate_in_background=self.config.region.populate_in_background,
        )
