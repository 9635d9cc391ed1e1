"""One replay from start to report, over any manager and device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from tiering.manager import TieringOffloadingManager
from tiering.replay.device import Device
from tiering.replay.engine import ReplayEngine
from tiering.replay.leaks import find_leaks
from tiering.replay.report import ReplayReport
from tiering.replay.trace import TraceRequest

__all__ = ["serve_trace"]


def serve_trace(
    manager: TieringOffloadingManager,
    device: Device,
    requests: Sequence[TraceRequest],
    *,
    concurrency: int,
    on_finished: Callable[[], None],
    num_groups: int = 1,
) -> ReplayReport:
    """Serve all requests and report; the manager and the device stay open."""
    longest = max((len(request.hash_ids) for request in requests), default=1)
    engine = ReplayEngine(manager, device, concurrency=concurrency, max_prompt_blocks=longest, num_groups=num_groups)
    began = time.perf_counter()
    engine.run(requests, on_finished)
    seconds = time.perf_counter() - began
    stats = manager.get_stats()
    leaks = find_leaks(stats, manager.primary_tier.rows.num_busy())
    return ReplayReport.of(engine.counts, stats, device.traffic(), seconds, leaks)
