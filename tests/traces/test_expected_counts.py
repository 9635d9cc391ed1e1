"""Hit counts on real and generated traces, equal to the integers of independent simulations of the same rules.

The traces and the table of integers are not part of the project. ``TIERING_TRACES`` names their folder.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tiering.replay.counting import count_hits
from tiering.replay.trace import TraceRequest, read_trace

TRACES = Path(os.environ.get("TIERING_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
TABLE = TRACES / "expected.json"

pytestmark = [
    pytest.mark.traces,
    pytest.mark.skipif(not TABLE.exists(), reason=f"no traces in {TRACES}"),
]

POLICIES = {"req:lru-rev": "lru", "req:arc-rev": "arc"}


def table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text())["traces"] if TABLE.exists() else {}
    return found


@cache
def trace(name: str) -> list[TraceRequest]:
    return list(read_trace(TRACES / f"{name}.jsonl.xz"))


def marks(name: str) -> list[pytest.MarkDecorator]:
    return [] if name == "gen500" else [pytest.mark.slow]


SINGLE = [
    pytest.param(name, row["capacity"], POLICIES[row["policy"]], row["prefix_hits"], marks=marks(name))
    for name, entry in table().items()
    for row in entry["single_tier"]
    if row["policy"] in POLICIES
]

DOUBLE = [
    pytest.param(name, row["c1"], row["c2"], touched, row if touched else row["own_touch"], marks=marks(name))
    for name, entry in table().items()
    for row in entry["two_tier"]
    for touched in (True, False)
]


@pytest.mark.parametrize(("name", "capacity", "policy", "hits"), SINGLE)
def test_one_tier(name: str, capacity: int, policy: str, hits: int) -> None:
    report = count_hits(trace(name), policy=policy, primary_rows=capacity)
    assert (report.counts.prefix_hits, report.leaks) == (hits, [])
    assert report.counts.accesses == table()[name]["block_accesses"]


@pytest.mark.parametrize(("name", "primary_rows", "secondary_rows", "touched", "expected"), DOUBLE)
def test_two_tiers(
    name: str, primary_rows: int, secondary_rows: int | None, touched: bool, expected: dict[str, Any]
) -> None:
    report = count_hits(trace(name), primary_rows=primary_rows, secondary_rows=secondary_rows, forward_touch=touched)
    hits = {tier: traffic.hits for tier, traffic in report.tiers.items()}
    assert hits == {"cpu": expected["primary_hits"], "memory": expected["secondary_hits"]}
    assert report.is_good


def hits_of(name: str, policy: str) -> dict[int, int]:
    rows = table()[name]["single_tier"]
    return {row["capacity"]: row["prefix_hits"] for row in rows if row["policy"] == policy}


BETTER = [
    pytest.param(name, capacity, hits_of(name, "req:arc-rev")[capacity], marks=marks(name))
    for name in table()
    for capacity, textbook_hits in hits_of(name, "seq:arc").items()
    if textbook_hits > hits_of(name, "req:arc-rev")[capacity]
]


@pytest.mark.parametrize(("name", "capacity", "arc_hits"), BETTER)
def test_arc_of_the_paper_is_better_where_the_textbook_says_so(name: str, capacity: int, arc_hits: int) -> None:
    assert count_hits(trace(name), policy="arc_paper", primary_rows=capacity).counts.prefix_hits > arc_hits


def test_the_table_has_the_rows_that_are_meant() -> None:
    assert len(SINGLE) == 32
    assert len(DOUBLE) == 24
    assert len(BETTER) >= 10
