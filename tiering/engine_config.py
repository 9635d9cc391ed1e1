"""What the engine knows and the user cannot choose: its model, its KV cache, its ranks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EngineConfig", "KVGroup"]


@dataclass(frozen=True, slots=True)
class KVGroup:
    """One KV-cache group: layers that share block tables.

    Attributes:
        tokens_per_block: tokens in one device block of this group, per rank.
        tensor_indices: which of `EngineConfig.tensor_page_bytes` hold its layers.
        layer_names: names for messages.
    """

    tokens_per_block: int
    tensor_indices: tuple[int, ...]
    layer_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine's facts, the same in each of its processes except for ``rank``.

    Attributes:
        engine_id: names the shared region; unique among the engines of one machine.
        groups: the KV-cache groups, in the order of their group index.
        tensor_page_bytes: bytes of one device block in each KV tensor of one rank, padding included.
        num_device_blocks: device blocks per rank; 0 while the engine does not know yet.
        tokens_per_hash: tokens per prefix-cache hash, per rank.
        world_size: ranks of the engine. Those that hold different KV have their bytes side by side in a row.
        kv_replicas: ranks, one after another, that hold the same KV (as with MLA) and take turns in storing it.
        rank: this process's rank, or None in the scheduler.
        context_parallel_factor: ranks that share the tokens of one block.
        enable_kv_events: whether anybody drains `take_events`.
        model_name, model_revision, weights_digest, kv_dtype, kv_layout, parallel_layout, hash_scheme: see
            `tiering.naming.Namespace`.
    """

    engine_id: str
    groups: tuple[KVGroup, ...]
    tensor_page_bytes: tuple[int, ...]
    num_device_blocks: int
    tokens_per_hash: int
    world_size: int = 1
    kv_replicas: int = 1
    rank: int | None = None
    context_parallel_factor: int = 1
    enable_kv_events: bool = False
    model_name: str = ""
    model_revision: str = ""
    weights_digest: str = ""
    kv_dtype: str = ""
    kv_layout: str = ""
    parallel_layout: str = ""
    hash_scheme: str = ""

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one device block over all tensors of one rank."""
        return sum(self.tensor_page_bytes)

    @property
    def num_columns(self) -> int:
        """Ranks' bytes that lie side by side in a row."""
        return self.world_size // self.kv_replicas
