"""The soak runs, finds nothing wrong, and finds what is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.soak_bookkeeping import play_short_requests
from tiering.lookups import Lookups

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_short_soak() -> None:
    command = [sys.executable, "-W", "error", "-m", "benchmarks.soak", "--seconds", "20", "--requests", "2000"]
    ran = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "problems: none" in ran.stdout
    assert " 0 mismatches" in ran.stdout
    faults = dict(re.findall(r"^([A-Z_]+) +[\d,]+ +[\d.]+% +([\d,]+) +[\d.]+ MiB$", ran.stdout, re.MULTILINE))
    assert len(faults) == 10


def test_what_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_short_requests(2_000) == []
    monkeypatch.setattr(Lookups, "finish", lambda lookups, request: None)
    problems = play_short_requests(2_000)
    assert any("_requests has 2000 entries" in problem for problem in problems), problems
