"""Replay with bytes: rank processes with device tensors, the shared region, the configured tiers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig, KVGroup
from tiering.errors import ConfigError
from tiering.region import RegionLayout
from tiering.replay.generator import TOKENS_PER_BLOCK
from tiering.replay.rank_group import RankGroup
from tiering.replay.report import ReplayReport
from tiering.replay.serving import serve_trace
from tiering.replay.trace import TraceRequest
from tiering.specs.tiering import TieringOffloadingSpec

__all__ = ["replay_bytes"]

_BLOCKS_PER_CHUNK = 2
_TENSORS = 2


def replay_bytes(
    requests: Sequence[TraceRequest],
    config: TieringConfig,
    *,
    num_ranks: int,
    row_bytes: int,
    primary_rows: int | None = None,
    concurrency: int = 8,
    on_finished: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Replay with data: ranks in processes of their own fill, copy and compare every byte.

    Args:
        requests: the trace; each of its blocks is one chunk.
        config: the configuration, of which ``block_size`` is not used.
        num_ranks: worker processes.
        row_bytes: bytes of a chunk over all ranks.
        primary_rows: rows of the primary, instead of as many as ``cpu_bytes_to_use`` holds.
        concurrency: requests at a time.
        on_finished: called once per request.

    Raises:
        ConfigError: ``row_bytes`` cannot be divided among the ranks, or the configuration does not fit it.
        TieringError: a rank or a tier could not start, or a rank died. Nothing is left behind.
    """
    pieces = num_ranks * _TENSORS * _BLOCKS_PER_CHUNK
    if row_bytes % (pieces * 8) or row_bytes < 1:
        raise ConfigError(
            f"row bytes: {row_bytes}: must be a multiple of {pieces * 8}: {num_ranks} ranks have {_TENSORS} tensors "
            f"each and {_BLOCKS_PER_CHUNK} device blocks per chunk"
        )
    update: dict[str, int] = {"block_size": TOKENS_PER_BLOCK}
    if primary_rows is not None:
        layout = RegionLayout(primary_rows, num_ranks, row_bytes // num_ranks)
        update["cpu_bytes_to_use"] = layout.total_bytes
    config = config.model_copy(update=update)
    longest = max((len(request.hash_ids) for request in requests), default=1)
    engine = EngineConfig(
        engine_id=f"replay-{os.getpid()}",
        groups=(KVGroup(TOKENS_PER_BLOCK // _BLOCKS_PER_CHUNK, tuple(range(_TENSORS))),),
        tensor_page_bytes=(row_bytes // pieces,) * _TENSORS,
        num_device_blocks=concurrency * longest * _BLOCKS_PER_CHUNK,
        tokens_per_hash=TOKENS_PER_BLOCK // _BLOCKS_PER_CHUNK,
        world_size=num_ranks,
        model_name="replay",
        kv_layout="key-pattern-1",
    )
    spec = TieringOffloadingSpec(engine, config)
    manager = spec.get_manager()
    try:
        ranks = RankGroup(engine, config, concurrency * longest)
        try:
            spec.unlink_region()  # all have joined: whatever kills them now, nothing is left behind
            return serve_trace(manager, ranks, requests, concurrency, on_finished)
        finally:
            ranks.close()
    finally:
        manager.shutdown()
