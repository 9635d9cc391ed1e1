"""Replay without bytes: the real manager over rows that hold nothing, for exact hit counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.primary import CPUOffloadingManager
from tiering.replay.device import NoDevice
from tiering.replay.report import ReplayReport
from tiering.replay.serving import serve_trace
from tiering.replay.trace import TraceRequest
from tiering.testing.memory_tier import MemoryTier, MemoryTierConfig

__all__ = ["count_hits"]


def count_hits(
    requests: Sequence[TraceRequest],
    *,
    policy: str = "lru",
    primary_rows: int,
    secondary_rows: int | None = 0,
    forward_touch: bool = True,
    concurrency: int = 1,
    on_finished: Callable[[], None] = lambda: None,
) -> ReplayReport:
    """Replay without data. With one request at a time, the counts are exact and repeatable.

    Args:
        requests: the trace.
        policy: eviction policy of the primary.
        primary_rows: rows of the primary.
        secondary_rows: chunks that a second tier (least recently used first to go) keeps; None for no bound, 0 for no
            such tier.
        forward_touch: whether a request's recency reaches the second tier, or only its own stores and loads count.
        concurrency: requests at a time.
        on_finished: called once per request.
    """
    tiers = []
    if secondary_rows != 0:
        tier_config = MemoryTierConfig(max_chunks=secondary_rows, follow_requests=forward_touch)
        tiers.append(
            TierWorker(
                lambda context: MemoryTier(tier_config, context),
                JobLoop(),
                lambda rows: [memoryview(b"")] * len(rows),
                name="memory",
                row_bytes=0,
                namespace=Namespace("no data", row_bytes=0),
            )
        )
    manager = TieringOffloadingManager(CPUOffloadingManager(primary_rows, policy), tiers, promotion_limit=1.0)
    try:
        return serve_trace(manager, NoDevice(), requests, concurrency=concurrency, on_finished=on_finished)
    finally:
        manager.shutdown()
