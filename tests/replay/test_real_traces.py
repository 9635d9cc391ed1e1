"""Real request traces, where they are at hand: they are not part of the project."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_command import CHECKOUT, ReplayCommand, run_replay, wait_until
from replay_setup import ROW_BYTES, ReplaySetup

from tiering.replay.counting import count_hits
from tiering.replay.trace import read_trace

TRACES = Path(os.environ.get("TIERING_TRACES", CHECKOUT.parent / "shared" / "traces"))
CONVERSATION = TRACES / "conversation_5000.jsonl.xz"
NUM_REQUESTS = 2000
PRIMARY_ROWS = 2000
DISK_SLOTS = 20_000

pytestmark = [
    pytest.mark.traces,
    pytest.mark.slow,
    pytest.mark.skipif(not CONVERSATION.exists(), reason=f"no traces in {TRACES}"),
]


@pytest.fixture
def arguments(setup: ReplaySetup) -> tuple[object, ...]:
    capacity = DISK_SLOTS * (4096 + ROW_BYTES)  # a slot is a header page and a row
    setup.write_config(f"{{type: disk, root_dirs: [{setup.root}], capacity: {capacity}}}")
    options = {"trace": CONVERSATION, "limit": NUM_REQUESTS, "config": setup.config, "row-bytes": ROW_BYTES}
    options |= {"ranks": 2, "concurrency": 8, "primary-rows": PRIMARY_ROWS}
    return tuple(itertools.chain.from_iterable((f"--{name}", value) for name, value in options.items()))


def test_two_thousand_conversations(setup: ReplaySetup, arguments: tuple[object, ...]) -> None:
    primary_alone = count_hits(
        list(itertools.islice(read_trace(CONVERSATION), NUM_REQUESTS)), primary_rows=PRIMARY_ROWS
    )
    report = run_replay(*arguments).report
    assert (report["requests"], report["mismatches"], report["leaks"]) == (NUM_REQUESTS, 0, 0)
    assert report["failures"] == {"cpu": 0, "disk": 0}
    assert report["accesses"] == primary_alone.counts.accesses
    assert report["prefix_hits"] > 2 * primary_alone.counts.prefix_hits
    assert report["hits"]["disk"] > 0
    assert setup.region_files() == []


def test_killed_in_the_middle_and_started_again(
    setup: ReplaySetup, arguments: tuple[object, ...], start: Callable[..., ReplayCommand]
) -> None:
    command = start(*arguments)
    wait_until(lambda: setup.journal_bytes() > 400_000 or command.process.poll() is not None)
    assert command.process.poll() is None, command.end().errors
    command.kill_all()
    assert setup.region_files() == []
    report = run_replay(*arguments).report
    assert (report["requests"], report["mismatches"], report["leaks"]) == (NUM_REQUESTS, 0, 0)
    assert report["hits"]["disk"] > 0
    assert setup.region_files() == []


@pytest.mark.parametrize(
    ("policy", "primary_rows", "hits"),
    [("lru", 1000, 5377), ("arc", 1000, 6302), ("lru", 10_000, 26481), ("arc", 10_000, 25783), ("lru", 30_000, 39860)],
)
def test_hit_counts(policy: str, primary_rows: int, hits: int) -> None:
    report = count_hits(list(read_trace(CONVERSATION)), policy=policy, primary_rows=primary_rows)
    assert (report.counts.prefix_hits, report.leaks) == (hits, [])
