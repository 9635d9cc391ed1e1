"""The door by which vLLM enters: one `KVTieringSpec` in each of its processes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.version import __version__ as vllm_version

from tiering import device
from tiering.engine_config import EngineConfig, KVGroup
from tiering.errors import ConfigError
from tiering.specs.tiering import TieringOffloadingSpec
from tiering_vllm.kv_layout import describe_kv_layout
from tiering_vllm.metrics import METRICS, MetricKind
from tiering_vllm.settings import read_settings
from tiering_vllm.v030.manager import TieringManagerAdapter
from tiering_vllm.v030.worker import TieringWorkerAdapter
from tiering_vllm.weights_digest import model_folder, weights_digest

__all__ = ["KVTieringSpec"]

logger = logging.getLogger(__name__)


class KVTieringSpec(OffloadingSpec):
    """CPU rows and secondary tiers behind vLLM's OffloadingConnector.

    vLLM makes one in each worker and then one in the scheduler; the region is created by the first worker and joined by
    the others.
    """

    def __init__(self, config: OffloadingConfig) -> None:
        """Read the settings.

        Raises:
            ConfigError: they cannot be used with this model.
        """
        super().__init__(config)
        self._settings = read_settings(config.extra_config, self.tokens_per_block)
        tiering = self._settings.tiering
        # The connector has read these two from the extra configuration; they may be in our file instead.
        self.offload_prompt_only = tiering.offload_prompt_only
        self.blocks_per_chunk = TieringOffloadingSpec(self._engine(None, ""), tiering).block_size_factor
        self._manager: OffloadingManager | None = None
        self._worker: OffloadingWorker | None = None

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        kinds = {MetricKind.COUNTER: OffloadingCounterMetadata, MetricKind.GAUGE: OffloadingGaugeMetadata}
        return {metric.name: kinds[metric.kind](metric.documentation, metric.labels) for metric in METRICS}

    def get_manager(self) -> OffloadingManager:
        if self._manager is None:
            tiering = self._settings.tiering
            spec = TieringOffloadingSpec(self._engine(None, self._weights_digest()), tiering)
            manager = spec.get_manager()
            # vLLM's workers register their KV caches, and so have joined, before its scheduler is made. If this
            # process was the first to come all the same, the workers still need the name.
            if spec.region is not None and not spec.region.is_creator:
                spec.unlink_region()
            tier_types = {tier.name or tier.type: tier.type for tier in tiering.secondary_tier_configs}
            self._manager = TieringManagerAdapter(manager, tier_types)
        return self._manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the worker over these KV caches.

        Raises:
            ConfigError: a worker exists already: its region has no name any more, and another would be shared with
                nobody; or the KV caches are larger than the scheduler takes them to be.
        """
        if self._worker is not None:
            raise ConfigError("KV caches were registered a second time; the rows are bound to the first ones")
        num_bytes = sum(tensor.page_size_bytes for tensor in kv_caches.tensors)
        if num_bytes > self.config.worker_kv_bytes_per_block:
            raise ConfigError(
                f"the KV tensors have {num_bytes} bytes per block, but vLLM's scheduler counts with "
                f"{self.config.worker_kv_bytes_per_block}; this model cannot be offloaded"
            )
        tiering = self._settings.tiering
        if tiering.copy_cpus is None and kv_caches.tensors[0].tensor.device.type == "cpu":
            tiering = tiering.model_copy(update={"copy_cpus": tuple(sorted(_cpus_for_copies()))})
        spec = TieringOffloadingSpec(self._engine(self.config.parallel.rank, ""), tiering)
        handlers = spec.create_handlers(_canonical(kv_caches))
        self._worker = TieringWorkerAdapter(handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler)
        return self._worker

    def _engine(self, rank: int | None, digest: str) -> EngineConfig:
        config, parallel = self.config, self.config.parallel
        return EngineConfig(
            engine_id=config.engine_id,
            # vLLM's scheduler knows the bytes of a block over all tensors only, and that is what a row consists of.
            groups=tuple(KVGroup(group.tokens_per_block, (0,), group.layer_names) for group in config.groups),
            tensor_page_bytes=(config.worker_kv_bytes_per_block,),
            num_device_blocks=0,
            tokens_per_hash=config.cache.tokens_per_hash,
            world_size=parallel.world_size,
            kv_replicas=parallel.world_size if config.replicated_layout else 1,
            rank=rank,
            enable_kv_events=config.enable_kv_cache_events,
            # The digest says which model it is; where its folder lies may differ between machines that share a tier.
            model_name=Path(config.model.name).name if Path(config.model.name).exists() else config.model.name,
            weights_digest=digest,
            kv_dtype=config.model.dtype,
            kv_layout=describe_kv_layout(
                current_platform.device_type, vllm_version, config.kv_cache_layout, self._settings.kv_layout
            ),
            parallel_layout=f"tp{parallel.tp_size}pp{parallel.pp_size}pcp{parallel.pcp_size}dcp{parallel.dcp_size}",
        )

    def _weights_digest(self) -> str:
        if not self._settings.tiering.secondary_tier_configs:
            return ""
        begin = time.perf_counter()
        folder = model_folder(self.config.model.name, self._settings.model_revision)
        if folder is None:
            logger.warning(
                "%s: its files are not on this machine: KV is told apart by the model's name only",
                self.config.model.name,
            )
            return self._settings.model_revision
        digest = weights_digest(folder)
        logger.info("weights of %s: %s (%.2f s)", folder, digest, time.perf_counter() - begin)
        return digest


def _canonical(kv_caches: CanonicalKVCaches) -> device.CanonicalKVCaches:
    return device.CanonicalKVCaches(
        [device.CanonicalKVCacheTensor(tensor.tensor, tensor.page_size_bytes) for tensor in kv_caches.tensors],
        [
            [device.CanonicalKVCacheRef(ref.tensor_idx, ref.page_size_bytes) for ref in refs]
            for refs in kv_caches.group_data_refs
        ],
    )


def _cpus_for_copies() -> Set[int]:
    """Return the processors that vLLM has not bound this worker to: a thread that shares them delays each step."""
    bound = os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1)) - bound or bound
