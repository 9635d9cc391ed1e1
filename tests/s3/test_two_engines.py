"""Engines in processes of their own, with ranks that compare every byte, over one bucket."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from object_harness import QUICK_RETRIES, Place

from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault

sys.path.append(str(Path(__file__).parents[1] / "replay"))
from replay_command import CHECKOUT, ReplayCommand

TRACES = Path(os.environ.get("TIERING_TRACES", CHECKOUT.parent / "shared" / "traces"))
CONVERSATION = TRACES / "conversation_5000.jsonl.xz"

ROW_BYTES = 4096
PATIENT = {"lookup_timeout": "60s", "load_timeout": "60s", "store_timeout": "60s", "store_share": 1.0}
NEVER_OPENS = {"window": 10_000, "min_failures": 10_000}


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory for the regions, in which nothing may be left."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as name:
        yield Path(name)
        assert os.listdir(name) == []


@pytest.fixture
def start(shared_memory: Path, tmp_path: Path) -> Iterator[Callable[..., ReplayCommand]]:
    """Starts an engine with CPU rows and a place below them; what is left of it is killed at the end."""
    with ExitStack() as stack:

        def start_one(place: Place, *arguments: object, num_rows: int = 300) -> ReplayCommand:
            settings = {"limits": PATIENT, "retry": QUICK_RETRIES} | place.settings
            config = {
                "cpu_bytes_to_use": num_rows * ROW_BYTES,
                "region": {"directory": str(shared_memory)},
                "secondary_tier_configs": [settings],
            }
            file = tmp_path / "tiering.yaml"
            file.write_text(json.dumps(config))  # JSON is YAML
            command = ReplayCommand("--config", file, "--row-bytes", ROW_BYTES, "--ranks", 1, *arguments)
            stack.callback(command.kill_all)
            return command

        yield start_one


def report_of(command: ReplayCommand) -> dict[str, Any]:
    """The report of an engine that must have ended well: each byte right, and nothing left over."""
    report = command.end().report
    assert (report["mismatches"], report["leaks"]) == (0, 0), report["leak_details"]
    return report


def test_an_engine_finds_what_two_at_the_same_time_have_stored(
    place: Place, start: Callable[..., ReplayCommand]
) -> None:
    arguments = ("--generate", 15, "--concurrency", 1)
    for report in [report_of(engine) for engine in [start(place, *arguments) for _ in range(2)]]:
        assert report["failures"] == {"cpu": 0, "s3": 0}
    third = report_of(start(place, *arguments))
    assert third["failures"] == {"cpu": 0, "s3": 0}
    assert third["prefix_hits"] == third["accesses"] == report["accesses"]
    assert third["hits"]["s3"] >= len(place.chunks()) > 0
    assert third["bytes"]["s3"] == {"store": 0, "load": third["hits"]["s3"] * ROW_BYTES}


def test_a_bucket_out_of_reach_for_a_while_costs_misses_only(place: Place, start: Callable[..., ReplayCommand]) -> None:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        once = replace(place, settings=place.settings | {"retry": {"attempts": 1}, "breaker": NEVER_OPENS})
        engine = start(once.through(proxy), "--generate", 40)
        proxy.wait_for("PUT", 50)
        with proxy.during(HttpFault(reset=True)):
            proxy.wait_for("PUT", proxy.count("PUT") + 40)
        report = report_of(engine)
    assert report["requests"] == 40
    assert report["failures"]["s3"] > 0
    assert report["bytes"]["s3"]["store"] > 0


@pytest.mark.traces
@pytest.mark.slow
@pytest.mark.skipif(not CONVERSATION.exists(), reason=f"no traces in {TRACES}")
@pytest.mark.parametrize("place", ["obstore-seaweedfs"], indirect=True)
def test_five_hundred_conversations_each(place: Place, start: Callable[..., ReplayCommand]) -> None:
    arguments = ("--trace", CONVERSATION, "--limit", 500)
    first = report_of(start(place, *arguments, num_rows=1000))
    others = [start(place, *arguments, num_rows=1000) for _ in range(2)]
    for report in map(report_of, others):
        assert report["requests"] == first["requests"] == 500
        assert report["prefix_hits"] > 2 * first["prefix_hits"]
        assert report["hits"]["s3"] > first["hits"]["s3"]
        print(f"{report['prefix_hits']} hits after {first['prefix_hits']}, lookups {report['lookup_us']}")
