"""What the log says of a tier that fails: one line a minute for each kind of call, however often it fails."""

from __future__ import annotations

import pytest
from manager_rig import R1, Rig

from tiering.secondary_tier import JobResult


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "this costs misses only" in record.getMessage()]
    caplog.clear()
    return found


def test_a_line_a_minute_for_each_kind_of_call(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(4, "odd")
    for number in range(200):
        rig.tier.report(JobResult(10_000 + number, [True]))
        rig.tier.raise_in("on_schedule_end", RuntimeError(f"for the {number}th time"))
        rig.step()
        rig.now += 0.1
    assert lines(caplog) == [
        "tier odd failed in get_finished_jobs: ValueError: a result for job 10000, which is not open; "
        "this costs misses only",
        "tier odd failed in on_schedule_end: RuntimeError: for the 0th time; this costs misses only",
    ]
    assert rig.tier_stats("odd")["faults"] == 400
    rig.now += 60.0
    rig.tier.raise_in("on_schedule_end", RuntimeError("again"))
    rig.step()
    assert lines(caplog) == ["tier odd failed in on_schedule_end: RuntimeError: again; this costs misses only"]
    rig.finish(R1)
    rig.check()
