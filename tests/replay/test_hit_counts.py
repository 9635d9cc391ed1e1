"""Exact hit counts on the generated trace.

Counting: one request at a time from an empty start, every block of a prompt is one access, and hits are the leading
blocks that are there. The integers come from an independent simulation of the same rules.
"""

from __future__ import annotations

import itertools

import pytest

from tiering.replay.counting import count_hits
from tiering.replay.generator import generate_trace
from tiering.replay.trace import TraceRequest
from tiering.testing import ResourceWatch


@pytest.fixture(scope="module")
def trace() -> list[TraceRequest]:
    return list(itertools.islice(generate_trace(1), 5000))


@pytest.mark.parametrize(
    ("num_requests", "primary_rows", "lru", "arc"),
    [
        (500, 150, 2679, 2784),
        (500, 300, 3603, 3880),
        (500, 1000, 6957, 6888),
        (5000, 300, 31779, 29020),
        (5000, 1000, 67599, 62868),
        (5000, 10000, 84754, 83733),
    ],
)
def test_one_tier(trace: list[TraceRequest], num_requests: int, primary_rows: int, lru: int, arc: int) -> None:
    for policy, expected in (("lru", lru), ("arc", arc)):
        report = count_hits(trace[:num_requests], policy=policy, primary_rows=primary_rows)
        assert (policy, report.counts.prefix_hits, report.leaks) == (policy, expected, [])


@pytest.mark.parametrize(
    ("num_requests", "primary_rows", "secondary_rows", "forward_touch", "hits"),
    [
        (500, 300, None, True, {"cpu": 3603, "memory": 3716}),
        (500, 300, None, False, {"cpu": 3603, "memory": 3716}),
        (500, 300, 1000, True, {"cpu": 3603, "memory": 3354}),
        (500, 300, 1000, False, {"cpu": 3603, "memory": 3313}),
        pytest.param(5000, 300, None, True, {"cpu": 31779, "memory": 54667}, marks=pytest.mark.slow),
        pytest.param(5000, 1000, None, True, {"cpu": 67599, "memory": 18847}, marks=pytest.mark.slow),
        pytest.param(5000, 1000, 5000, True, {"cpu": 67599, "memory": 14746}, marks=pytest.mark.slow),
        pytest.param(5000, 1000, 5000, False, {"cpu": 67599, "memory": 14456}, marks=pytest.mark.slow),
    ],
)
def test_two_tiers(
    trace: list[TraceRequest],
    num_requests: int,
    primary_rows: int,
    secondary_rows: int | None,
    *,
    forward_touch: bool,
    hits: dict[str, int],
) -> None:
    report = count_hits(
        trace[:num_requests], primary_rows=primary_rows, secondary_rows=secondary_rows, forward_touch=forward_touch
    )
    assert {name: tier.hits for name, tier in report.tiers.items()} == hits
    assert report.counts.prefix_hits == sum(hits.values())
    assert report.is_good


def test_counts_of_the_trace_itself(trace: list[TraceRequest]) -> None:
    report = count_hits(trace, primary_rows=33621)
    assert (report.counts.requests, report.counts.accesses) == (5000, 120067)
    assert (report.counts.prefix_hits, report.evictions) == (86446, 0)
    assert report.prefix_hit_rate == pytest.approx(0.72, abs=5e-5)


def test_many_requests_at_a_time_lose_nothing(trace: list[TraceRequest]) -> None:
    finished = 0

    def on_finished() -> None:
        nonlocal finished
        finished += 1

    with ResourceWatch():
        report = count_hits(trace[:500], primary_rows=300, secondary_rows=1000, concurrency=8, on_finished=on_finished)
    assert report.is_good
    assert finished == report.counts.requests == 500
    assert 0 < report.counts.prefix_hits <= 7319  # of an unlimited cache


def test_a_prompt_longer_than_the_primary_is_served() -> None:
    requests = [TraceRequest(0, 1, 1, tuple(range(10))), TraceRequest(1, 1, 1, ())] * 2
    report = count_hits(requests, primary_rows=4)
    assert report.is_good
    assert (report.counts.prefix_hits, report.counts.stores_refused) == (0, 2)
