"""The engine of the soak: what it serves, over which tiers, and who kills one of them."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tiering.config_file import parse_config
from tiering.engine_config import EngineConfig, KVGroup
from tiering.isolation import IsolatedTier
from tiering.manager import TieringOffloadingManager
from tiering.replay.engine import ReplayEngine
from tiering.replay.generator import TOKENS_PER_BLOCK, generate_trace
from tiering.replay.trace import TraceRequest
from tiering.specs.tiering import TieringOffloadingSpec

__all__ = ["MAX_CHUNKS", "TIMED_CALLS", "Killer", "PacedEngine", "endless_requests", "make_spec", "time_calls"]

TIMED_CALLS = (
    "lookup_prefix",
    "prepare_load",
    "complete_load",
    "prepare_store",
    "complete_store",
    "on_request_finished",
    "on_schedule_end",
    "has_pending_work",
)

_ROW_BYTES = 16_384
_SLOT_HEADER_BYTES = 4_096
_NUM_ROWS = 256
_STEP_SECONDS = 0.04
_NUM_PROMPTS = 100
MAX_CHUNKS = 12
_USES_OF_CONTENT = 20
_SECONDS_BETWEEN_KILLS = 20.0


def _with_patience(timeout: str, tier: dict[str, Any]) -> dict[str, Any]:
    """Have a tier late, left alone, quarantined and back again within a phase."""
    return tier | {
        "limits": {"lookup_timeout": timeout, "load_timeout": timeout, "store_timeout": timeout},
        "breaker": {"open_for": "100ms", "max_open_for": "200ms", "max_corrupt": 50, "quarantine_for": "300ms"},
    }


def make_spec(directory: Path, store: dict[str, Any], client: str) -> TieringOffloadingSpec:
    """Return the spec of an engine over four tiers, each larger than the one before it and smaller than the content."""
    tiers = [
        _with_patience("500ms", {"type": "soak_memory", "max_chunks": 150}),
        _with_patience("500ms", {"type": "disk", **_place(directory / "disk", 300)}),
        _with_patience(
            "500ms", {"type": "disk", "name": "isolated", "isolation": "process", **_place(directory / "isolated", 600)}
        ),
        _with_patience("2s", {"type": "s3", "client": client, **store}),
    ]
    shared_memory = directory / "shared-memory"
    shared_memory.mkdir(parents=True)
    config = parse_config(
        {
            "cpu_bytes_to_use": _NUM_ROWS * _ROW_BYTES,
            "region": {"directory": str(shared_memory)},
            "secondary_tier_configs": tiers,
        },
        source="soak",
    )
    engine = EngineConfig(
        engine_id=f"soak-{os.getpid()}",
        groups=(KVGroup(TOKENS_PER_BLOCK, (0,)),),
        tensor_page_bytes=(_ROW_BYTES,),
        num_device_blocks=1,
        tokens_per_hash=TOKENS_PER_BLOCK,
        model_name="soak",
    )
    return TieringOffloadingSpec(engine, config)


def _place(root: Path, num_chunks: int) -> dict[str, Any]:
    return {"root_dirs": [str(root)], "capacity": num_chunks * (_ROW_BYTES + _SLOT_HEADER_BYTES)}


def endless_requests(seed: int) -> Iterator[TraceRequest]:
    """Yield prompts of up to `MAX_CHUNKS` chunks: the same ones again and again.

    Now and then the chunks that a prompt shares with no other are new ones. So there is always something to store, and
    always as much to be found.
    """
    draw = random.Random(seed)
    prompts = list(itertools.islice(generate_trace(seed), _NUM_PROMPTS))
    num_prompts_with = Counter(hash_id for prompt in prompts for hash_id in prompt.hash_ids)
    num_uses = [draw.randrange(_USES_OF_CONTENT) for _ in prompts]
    while True:
        idx = draw.randrange(_NUM_PROMPTS)
        offset = num_uses[idx] // _USES_OF_CONTENT * 2**32
        num_uses[idx] += 1
        ids = prompts[idx].hash_ids[:MAX_CHUNKS]
        own = [hash_id + offset * (num_prompts_with[hash_id] == 1) for hash_id in ids]
        yield replace(prompts[idx], hash_ids=tuple(own))


class PacedEngine(ReplayEngine):
    """An engine whose steps last as long as those of a model, so that this machine's processors are not the limit."""

    _step_ends = 0.0

    def _collect(self, timeout_seconds: float) -> None:
        time.sleep(max(0.0, self._step_ends - time.monotonic()))
        self._step_ends = time.monotonic() + _STEP_SECONDS
        super()._collect(0.0)


class Killer:
    """Kills the process of the isolated tier from time to time, while the engine goes on.

    Attributes:
        num_kills: how often it has.
    """

    def __init__(self, manager: TieringOffloadingManager) -> None:
        (self._tier,) = (tier._tier for tier in manager._tiers if isinstance(tier._tier, IsolatedTier))
        self._due = time.monotonic() + _SECONDS_BETWEEN_KILLS / 4
        self.num_kills = 0

    def kill_if_due(self) -> None:
        """Kill it, if it is time to."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _SECONDS_BETWEEN_KILLS
            with suppress(ProcessLookupError):  # it is being started again
                os.kill(self._tier.pid, signal.SIGKILL)
                self.num_kills += 1


def time_calls(manager: TieringOffloadingManager, durations: dict[str, Counter[int]]) -> None:
    """Count how long each call of the scheduler takes, in microseconds, from now on."""

    def timed(call: Callable[..., Any], microseconds: Counter[int]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                microseconds[_rounded((time.perf_counter() - began) * 1e6)] += 1

        return run

    for name in TIMED_CALLS:
        setattr(manager, name, timed(getattr(manager, name), durations[name]))


def _rounded(microseconds: float) -> int:
    """Two digits are enough, and make the number of different durations small."""
    return int(float(f"{microseconds:.2g}"))
