"""Offloading to CPU memory alone (seed, chapter 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.errors import ConfigError
from tiering.offloading_manager import OffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.region.layout import RegionLayout
from tiering.reuse_filter import FilterReusedOffloadingManager
from tiering.specs.offloading_spec import OffloadingSpec
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec, LoadStoreSpec

if TYPE_CHECKING:
    from tiering.device import CanonicalKVCaches, CpuGpuOffloadingHandlers, OffloadingHandler

__all__ = ["CPUOffloadingSpec"]


class CPUOffloadingSpec(OffloadingSpec):
    """Device <-> CPU rows; each worker has the rows' bytes of its own rank in private memory.

    Attributes:
        layout: the rows that ``cpu_bytes_to_use`` holds, over all ranks.
        num_blocks: their number.
    """

    def __init__(self, engine: EngineConfig, config: TieringConfig) -> None:
        """Work out how many rows there are.

        Raises:
            ConfigError: see `OffloadingSpec`; or the engine has no KV tensors, or ranks that do not divide into
                replicas; or the budget holds no row.
        """
        super().__init__(engine, config)
        if engine.kv_replicas < 1 or engine.world_size % engine.kv_replicas:
            raise ConfigError(f"{engine.world_size} ranks cannot hold the same KV {engine.kv_replicas} at a time")
        if engine.kv_bytes_per_block < 1:
            raise ConfigError("the engine has no KV-cache tensors: there is nothing to offload")
        self.layout = RegionLayout.from_budget(
            config.cpu_bytes_to_use, engine.kv_bytes_per_block * self.block_size_factor, engine.num_columns
        )
        self.num_blocks = self.layout.num_rows
        self.eviction_policy = config.eviction_policy
        self._manager: OffloadingManager | None = None
        self._handlers: CpuGpuOffloadingHandlers | None = None

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            self._manager = self.create_manager()
        return self._manager

    def get_handlers(
        self, kv_caches: CanonicalKVCaches
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], OffloadingHandler]]:
        if self._handlers is None:
            self._handlers = self.create_handlers(kv_caches)
        yield GPULoadStoreSpec, CPULoadStoreSpec, self._handlers.gpu_to_cpu_handler
        yield CPULoadStoreSpec, GPULoadStoreSpec, self._handlers.cpu_to_gpu_handler

    def shutdown(self) -> None:
        if self._manager is not None:
            self._manager.shutdown()
        if self._handlers is not None:
            self._handlers.shutdown()

    def create_manager(self) -> OffloadingManager:
        """Build the manager, behind the reuse filter if ``store_threshold`` asks for it."""
        manager: OffloadingManager = CPUOffloadingManager(
            self.num_blocks, self.eviction_policy, self.engine.enable_kv_events
        )
        if self.config.store_threshold >= 2:
            manager = FilterReusedOffloadingManager(manager, self.config.store_threshold, self.config.max_tracker_size)
        return manager

    def create_handlers(self, kv_caches: CanonicalKVCaches) -> CpuGpuOffloadingHandlers:
        """Build this rank's handlers over private memory."""
        from tiering.device import CpuGpuOffloadingHandlers  # noqa: PLC0415  (torch, in workers only)

        return CpuGpuOffloadingHandlers(
            kv_caches,
            self.block_size_factor,
            self.num_blocks,
            copy_threads=self.config.copy_threads,
            copy_cpus=self.config.copy_cpu_set,
        )

    @classmethod
    def build_metric_definitions(cls, config: TieringConfig) -> Mapping[str, Any]:
        if config.store_threshold >= 2:
            return {"stores_skipped": "chunks not stored because they were not seen often enough"}
        return {}
