"""The door by which an engine enters: one spec per process, made from the engine's facts and the configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.errors import ConfigError
from tiering.offloading_manager import OffloadingManager
from tiering.transfer_specs import LoadStoreSpec

if TYPE_CHECKING:
    from tiering.device import CanonicalKVCaches, OffloadingHandler

__all__ = ["OffloadingSpec"]


class OffloadingSpec(ABC):
    """What an engine builds its offloading from (seeds 000, chapter 1.9, and 004).

    The scheduler process calls `get_manager`, each worker process `get_handlers`. Nothing is built before.

    Attributes:
        hash_block_size: tokens per prefix-cache hash.
        gpu_block_size: tokens per device block, per KV-cache group.
        block_size_factor: device blocks per chunk.
        offload_prompt_only: whether generated tokens are not offloaded.
    """

    def __init__(self, engine: EngineConfig, config: TieringConfig) -> None:
        """Check the block sizes against one another.

        Raises:
            ConfigError: a device block is not a multiple of the hash block; or ``block_size`` is given and the groups
                have different device blocks, or it is not a multiple of theirs.
        """
        self.engine = engine
        self.config = config
        self.offload_prompt_only = config.offload_prompt_only
        self.hash_block_size = engine.tokens_per_hash * engine.context_parallel_factor
        self.gpu_block_size = tuple(g.tokens_per_block * engine.context_parallel_factor for g in engine.groups)
        for tokens in self.gpu_block_size:
            if tokens % self.hash_block_size:
                raise ConfigError(
                    f"the engine's block of {tokens} tokens is not a multiple of its hash block of "
                    f"{self.hash_block_size} tokens; align the block sizes of the model's KV-cache groups"
                )
        self.block_size_factor = self._chosen_factor(config.block_size)

    @abstractmethod
    def get_manager(self) -> OffloadingManager:
        """Return the manager, built at the first call. Scheduler process only."""

    @abstractmethod
    def get_handlers(
        self, kv_caches: CanonicalKVCaches
    ) -> Iterator[tuple[type[LoadStoreSpec], type[LoadStoreSpec], OffloadingHandler]]:
        """Yield (source, destination, handler) for both directions, built at the first call. Worker processes only."""

    def shutdown(self) -> None:
        """Give back what this process has built: its manager or its handlers, and its part of the rows' memory."""

    @classmethod
    def build_metric_definitions(cls, config: TieringConfig) -> Mapping[str, Any]:
        """Return the metrics that this spec's statistics consist of: name to description."""
        return {}

    def _chosen_factor(self, block_size: int | None) -> int:
        if block_size is None:
            return 1
        distinct = sorted(set(self.gpu_block_size))
        if len(distinct) != 1:
            raise ConfigError(
                f"block_size: {block_size}: cannot be chosen for KV-cache groups with different blocks, here of "
                f"{', '.join(map(str, distinct))} tokens; leave it out"
            )
        if block_size % distinct[0]:
            raise ConfigError(
                f"block_size: {block_size}: is not a multiple of the engine's block size of {distinct[0]} tokens"
            )
        return block_size // distinct[0]
