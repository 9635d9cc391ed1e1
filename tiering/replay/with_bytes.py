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
"""Tensors per KV-cache group."""

_SHARES = {1: (1,), 2: (2, 2), 3: (2, 4, 4)}
"""Per number of groups, into how many parts a row is divided to get the pages of each: groups with unequal pages."""


def replay_bytes(
    requests: Sequence[TraceRequest],
    config: TieringConfig,
    *,
    num_ranks: int,
    row_bytes: int,
    num_groups: int = 1,
    primary_rows: int | None = None,
    concurrency: int = 8,
    on_finished: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Replay with data: ranks in processes of their own fill, copy and compare every byte.

    Args:
        requests: the trace.
        config: the configuration, of which ``block_size`` is not used.
        num_ranks: worker processes.
        row_bytes: bytes of a row over all ranks.
        num_groups: KV-cache groups, 1 to 3; each block of the trace is one chunk in every group.
        primary_rows: rows of the primary, instead of as many as ``cpu_bytes_to_use`` holds.
        concurrency: requests at a time.
        on_finished: called once per request.

    Raises:
        ConfigError: ``row_bytes`` cannot be divided among the ranks, or the configuration does not fit it.
        TieringError: a rank or a tier could not start, or a rank died. Nothing is left behind.
    """
    if num_groups not in _SHARES:
        raise ConfigError(f"groups: {num_groups}: allowed: 1 to {max(_SHARES)}")
    pieces = num_ranks * _TENSORS * _BLOCKS_PER_CHUNK
    unit = pieces * 8 * max(_SHARES[num_groups])
    if row_bytes % unit or row_bytes < 1:
        raise ConfigError(
            f"row bytes: {row_bytes}: must be a multiple of {unit}, for {num_ranks} ranks and {num_groups} groups of "
            f"{_TENSORS} tensors with {_BLOCKS_PER_CHUNK} device blocks per chunk"
        )
    update: dict[str, int] = {"block_size": TOKENS_PER_BLOCK}
    if primary_rows is not None:
        layout = RegionLayout(primary_rows, num_ranks, row_bytes // num_ranks)
        update["cpu_bytes_to_use"] = layout.total_bytes
    config = config.model_copy(update=update)
    longest = max((len(request.hash_ids) for request in requests), default=1)
    engine = EngineConfig(
        engine_id=f"replay-{os.getpid()}",
        groups=tuple(
            KVGroup(TOKENS_PER_BLOCK // _BLOCKS_PER_CHUNK, tuple(range(group * _TENSORS, (group + 1) * _TENSORS)))
            for group in range(num_groups)
        ),
        tensor_page_bytes=tuple(row_bytes // pieces // share for share in _SHARES[num_groups] for _ in range(_TENSORS)),
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
            return serve_trace(
                manager, ranks, requests, concurrency=concurrency, on_finished=on_finished, num_groups=num_groups
            )
        finally:
            ranks.close()
    finally:
        manager.shutdown()
