"""A tier that breaks while requests run costs hits, and neither words nor requests."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_plans import CROWD, FEW_BLOCKS, Rounds, assert_same_words, cpu, engine
from engine_process import Engines, needs_vllm

from tiering.testing.object_servers import SeaweedServer

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900), needs_vllm]

Crowd = Callable[..., dict[str, Any]]


@pytest.fixture
def crowd(model: Path, region: Path) -> Crowd:
    """Plans rounds of the same, each from empty rows, over a tier that is left alone for moments only."""

    def plan(tier: dict[str, Any], *counters: dict[str, Any]) -> dict[str, Any]:
        rounds: Rounds = [{"prompts": CROWD, "reset": "rows", "max_tokens": 40, **each} for each in counters]
        soon = {"breaker": {"open_for": "50ms", "max_open_for": "50ms"}}
        tiering = cpu(region={"directory": str(region)}, secondary_tier_configs=[{**tier, **soon}])
        return engine(model, tiering, rounds, num_gpu_blocks_override=FEW_BLOCKS)

    return plan


def counter(tier: dict[str, Any], name: str, at_least: int) -> dict[str, Any]:
    return {"tier": tier["type"], "counter": name, "at_least": at_least}


def pause_at(tier: dict[str, Any], name: str, at_least: int) -> dict[str, Any]:
    return {"pause": counter(tier, name, at_least)}


def assert_settled(rounds: Rounds) -> None:
    last = rounds[-1]["stats"]
    assert last["stores_open"] == last["rows_held"] == last["rows_promoting"] == last["completions_unexpected"] == 0
    assert all(tier["jobs_in_flight"] == 0 for tier in last["tiers"].values())


def tier_process_of(engine_pid: int) -> int:
    """Return the only process that an engine has started for a tier."""
    threads = Path(f"/proc/{engine_pid}/task").iterdir()
    children = [pid for thread in threads for pid in (thread / "children").read_text().split()]
    (pid,) = [int(pid) for pid in children if b"tiering.isolation" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return pid


def test_an_s3_server_that_is_killed(
    engines: Engines, crowd: Crowd, server: SeaweedServer, bucket: dict[str, Any], crowd_without: Rounds
) -> None:
    """It dies while chunks are stored, is missing for a round, and comes back at the next pause."""
    tier = {**bucket, "retry": {"attempts": 1}}
    faults = iter((server.kill, server.start))
    (rounds,) = engines.play(
        crowd(tier, pause_at(tier, "stored_chunks", 3), {}, pause_at(tier, "stored_chunks", 3)),
        at_pause=lambda pid: next(faults)(),
    )
    assert_same_words(rounds, crowd_without)
    assert rounds[0]["paused_with"][0] > 0
    first, without_it, last = (each["stats"]["tiers"]["s3"] for each in rounds)
    assert first["store_failures"] > 0
    assert without_it["faults"] > first["faults"]
    assert last["breaker_opened"] > 0
    assert last["stored_chunks"] > without_it["stored_chunks"]
    assert_settled(rounds)


def test_a_disk_that_becomes_full(engines: Engines, crowd: Crowd, tmp_path: Path, crowd_without: Rounds) -> None:
    """It has space for a small part of what the tier may use; it is mounted for the engine alone, and goes with it."""
    tier = {"type": "disk", "root_dirs": [str(tmp_path)], "capacity": "64MiB"}
    mounting = 'mount -t tmpfs -o size=4m tmpfs $0 && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mounting, str(tmp_path)]
    if (tried := subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)).returncode != 0:
        pytest.skip(f"needs the right to mount: {tried.stderr.strip()}")
    (rounds,) = engines.play(crowd(tier, {}, {}), prefix=prefix)
    assert_same_words(rounds, crowd_without)
    first, last = (each["stats"]["tiers"]["disk"] for each in rounds)
    assert first["store_failures"] > 0
    assert last["loaded_chunks"] > 0
    assert_settled(rounds)
    assert os.listdir(tmp_path) == []


def test_a_tier_process_that_is_killed(engines: Engines, crowd: Crowd, tmp_path: Path, crowd_without: Rounds) -> None:
    """Once while it stores and once while it loads; it comes back, and what was on the disk is found again."""
    disk = {"type": "disk", "root_dirs": [str(tmp_path)], "capacity": "64MiB", "isolation": "process"}
    memory = {"type": "slow", "load_seconds": 60.0, "isolation": "process", "limits": {"load_timeout": "120s"}}
    storing, loading = engines.play(
        crowd(disk, pause_at(disk, "stored_chunks", 3), {"times": 50, "until": counter(disk, "loaded_chunks", 1)}),
        crowd(memory, {}, pause_at(memory, "jobs_in_flight", 1)),
        at_pause=lambda pid: os.kill(tier_process_of(pid), signal.SIGKILL),
    )
    assert_same_words([*storing, *loading], crowd_without)
    assert storing[0]["paused_with"][0] > 0
    assert storing[0]["stats"]["tiers"]["disk"]["store_failures"] > 0
    assert storing[1]["stats"]["tiers"]["disk"]["loaded_chunks"] > 0
    assert loading[1]["paused_with"][0] > 0
    assert loading[1]["stats"]["tiers"]["slow"]["load_failures"] > 0
    assert_settled(storing)
    assert_settled(loading)
