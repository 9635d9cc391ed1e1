"""Many short requests, with aborts and failures: nothing that is remembered may grow."""

from __future__ import annotations

import random
from pathlib import Path

from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.testing import NotQuiescentError, ScriptedTier, check_quiescent, container_sizes, drain

__all__ = ["play_short_requests"]

_NUM_ROWS = 64
_NUM_CHUNKS = 400
_IN_A_TIER = 200
_ABORTED = _FAILED = 0.05


def play_short_requests(num_requests: int) -> list[str]:
    """Serve them; return what has grown between the first half and the second, or is left over."""
    draw = random.Random(num_requests)
    tiers = [ScriptedTier(name, enable_events=True, finishes_itself=False) for name in ("one", "two")]
    primary = CPUOffloadingManager(_NUM_ROWS, "arc", enable_events=True)
    manager = TieringOffloadingManager(primary, tiers, promotion_limit=1.0)
    measured: list[dict[str, int]] = []
    memory: list[int] = []
    for number in range(num_requests):
        _serve(manager, tiers, ReqContext(f"request {number}"), draw)
        for tier in tiers:
            tier.calls.clear()
            tier.evict(*list(tier.objects)[_IN_A_TIER:])
        if number % 500 == 0:
            manager.take_events()
        if number + 1 in (num_requests // 2, num_requests):
            for tier in tiers:
                tier.finish_all()
            drain(manager)
            manager.take_events()
            measured.append(container_sizes(manager))
            memory.append(_data_bytes())
    problems = [
        f"{path} has {size} entries, {measured[0].get(path, 0)} before"
        for path, size in measured[1].items()
        if size > max(measured[0].get(path, 0), 2 * _IN_A_TIER)
    ]
    if memory[1] > 1.05 * memory[0]:
        problems.append(f"memory grew from {memory[0]} to {memory[1]} bytes over {num_requests // 2} requests")
    try:
        check_quiescent(manager, _NUM_ROWS)
    except NotQuiescentError as error:
        problems.append(str(error))
    return problems


def _serve(
    manager: TieringOffloadingManager, tiers: list[ScriptedTier], request: ReqContext, draw: random.Random
) -> None:
    start = draw.randrange(_NUM_CHUNKS)
    keys = [_key(number) for number in range(start, start + draw.randint(1, 6))]
    for _ in range(3):
        found = manager.lookup_prefix(keys, request)
        if not found.must_wait or draw.random() < _ABORTED:
            break
        manager.on_schedule_end()
        for tier in tiers:
            while tier.jobs:
                tier.finish(succeeded=draw.random() > _FAILED)
    if draw.random() > _ABORTED:
        manager.prepare_load(keys[: found.num_ready], request)
        store = manager.prepare_store(keys, request)
        manager.complete_load(keys[: found.num_ready])
        if store is not None:
            manager.complete_store(store.keys_to_store, success=draw.random() > _FAILED)
    manager.on_request_finished(request)
    manager.on_schedule_end()


def _key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(8, "big"), 0)


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
