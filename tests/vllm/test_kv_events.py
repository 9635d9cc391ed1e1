"""Whoever follows the KV events knows what is where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_plans import CROWD, FEW_BLOCKS, ROW, cpu, engine
from engine_process import Engines, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900), needs_vllm]


def test_events_replay_to_the_true_content(engines: Engines, model: Path, region: Path, tmp_path: Path) -> None:
    """Rows and disk are too small, so that chunks go as well as come; both are asked for what they hold."""
    from event_subscriber import event_hash, events_of, known_content, subscribed

    (tmp_path / "disk").mkdir()
    disk = {"type": "disk", "root_dirs": [str(tmp_path / "disk")], "capacity": 30 * (ROW + 4096)}
    tiers = [disk, {"type": "slow", "name": "memory"}]
    tiering = cpu(cpu_bytes_to_use=20 * ROW, region={"directory": str(region)}, secondary_tier_configs=tiers)
    rounds: list[dict[str, Any]] = [
        {"prompts": CROWD, "max_tokens": 40},
        {"prompts": CROWD[::-1], "reset": "device"},
        {"prompts": CROWD[:2], "reset": "rows", "list": True, "pause": {"at_end": True}},
    ]
    batches: dict[str, list[tuple[int, bytes]]] = {}

    with subscribed(tmp_path) as subscriber:

        def listen(pid: int) -> None:
            batches["replayed"] = subscriber.replayed()
            batches["heard"] = subscriber.heard(batches["replayed"][-1][0])

        ((*_, last),) = engines.play(
            engine(model, tiering, rounds, num_gpu_blocks_override=FEW_BLOCKS, kv_events_config=subscriber.settings),
            at_pause=listen,
        )
    numbers = [number for number, _ in batches["replayed"]]
    assert numbers == list(range(len(numbers)))
    assert batches["heard"] == batches["replayed"][-len(batches["heard"]) :]
    events = list(events_of(batches["replayed"]))
    truth = {tier: {event_hash(key) for key in keys} for tier, keys in last["content"].items()}
    assert all(truth.values())
    assert known_content(events) == truth
    gone = {event.get("ownership") for event in events if event["type"] == "BlockRemoved" and event["medium"] != "GPU"}
    assert gone == {None, "disk"}
    assert {event["medium"] for event in events if event.get("ownership")} == {"STORAGE"}
