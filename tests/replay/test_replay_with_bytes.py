"""The command with real ranks and a disk tier: one life, the next one, and one after damage."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from replay_command import Ended, run_replay
from replay_setup import ROW_BYTES, ReplaySetup

from tiering.replay.generator import generate_trace

NUM_REQUESTS = 60
ACCESSES = 1082
DISTINCT = 828


@pytest.fixture(scope="module")
def first_life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ReplaySetup, Ended]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as shared_memory:
        setup = ReplaySetup(tmp_path_factory.mktemp("replay"), Path(shared_memory))
        yield setup, run_replay(*setup.arguments(NUM_REQUESTS), "--concurrency", 1)


def test_report(first_life: tuple[ReplaySetup, Ended]) -> None:
    setup, ended = first_life
    report = ended.report
    assert ended.errors == ""
    assert (report["requests"], report["accesses"]) == (NUM_REQUESTS, ACCESSES)
    assert report["prefix_hits"] == sum(report["hits"].values()) == ACCESSES - DISTINCT
    assert report["prefix_hit_rate"] == round(report["prefix_hits"] / ACCESSES, 4)
    assert list(report["hits"]) == list(report["bytes"]) == ["cpu", "disk"]
    # Every chunk was computed once, stored to its row and from there to disk.
    stored = DISTINCT * ROW_BYTES
    assert report["bytes"]["cpu"] == {"store": stored, "load": report["prefix_hits"] * ROW_BYTES}
    assert report["bytes"]["disk"] == {"store": stored, "load": report["hits"]["disk"] * ROW_BYTES}
    assert report["hits"]["disk"] > 0
    assert report["seconds"] > 0
    assert 0 < report["lookup_us"]["p50"] <= report["lookup_us"]["p99"] <= report["lookup_us"]["max"]
    assert report["evictions"] > 0
    assert (report["mismatches"], report["leaks"], report["leak_details"]) == (0, 0, [])
    assert report["failures"] == {"cpu": 0, "disk": 0}
    assert setup.region_files() == []


def test_a_new_process_finds_everything_on_disk(first_life: tuple[ReplaySetup, Ended]) -> None:
    setup, _ = first_life
    report = run_replay(*setup.arguments(NUM_REQUESTS), "--concurrency", 1).report
    assert report["prefix_hits"] == ACCESSES
    assert report["hits"]["disk"] > 300
    assert report["bytes"]["cpu"]["store"] == report["bytes"]["disk"]["store"] == 0
    assert (report["mismatches"], report["leaks"]) == (0, 0)


def test_a_flipped_byte_is_a_miss_and_never_a_wrong_answer(first_life: tuple[ReplaySetup, Ended]) -> None:
    setup, _ = first_life
    fifth = next(itertools.islice(generate_trace(1), 4, None))
    setup.flip_byte(fifth.offload_keys()[-2])
    report = run_replay(*setup.arguments(NUM_REQUESTS)).report
    assert report["failures"] == {"cpu": 0, "disk": 1}
    assert 0 < report["prefix_hits"] < ACCESSES
    assert report["bytes"]["disk"]["store"] >= ROW_BYTES  # the chunk was computed and stored again
    assert (report["mismatches"], report["leaks"]) == (0, 0)


def test_four_ranks_and_three_groups_with_unequal_pages(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as shared_memory:
        setup = ReplaySetup(tmp_path, Path(shared_memory))
        first, second = (run_replay(*setup.arguments(40), "--ranks", 4, "--groups", 3).report for _ in range(2))
    for report in (first, second):
        assert (report["mismatches"], report["leaks"]) == (0, 0)
        assert report["prefix_hits"] % 3 == 0, "a block is loaded in all groups or in none"
    assert second["prefix_hits"] > first["prefix_hits"]
    assert second["hits"]["disk"] > 0
