"""The soak runs, finds nothing wrong, and finds what is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from benchmarks import soak
from benchmarks.soak_bookkeeping import play_short_requests
from benchmarks.soak_proxy import HTTP_FAULTS
from benchmarks.soak_tier import TIER_FAULTS
from tiering.lookups import Lookups
from tiering.questions import Questions
from tiering.testing import LeakError
from tiering.testing.object_servers import SeaweedServer

CHECKOUT = Path(__file__).parents[2]
PHASE = re.compile(
    r"^(tier: [A-Z_]+|http: [a-z0-9 ]+?)  +[\d.]+ +[\d,]+ +[\d.]+% .* ([\d,]+)  +[\d.]+ MiB$", re.MULTILINE
)


@pytest.mark.slow
@pytest.mark.skipif(not SeaweedServer.is_installed(), reason="the seaweedfs server is not installed")
def test_a_short_soak(tmp_path: Path) -> None:
    saved = tmp_path / "summary"
    command = [sys.executable, "-W", "error", "-m", "benchmarks.soak", "--seconds", "20", "--requests", "2000"]
    ran = subprocess.run([*command, "--save", saved], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert ran.stdout.splitlines()[-1] == "broken promise: none"
    assert " 0 mismatches" in ran.stdout
    times = dict(PHASE.findall(ran.stdout))
    assert set(times) == {f"tier: {fault.name}" for fault in TIER_FAULTS} | {f"http: {name}" for name in HTTP_FAULTS}
    assert "0" not in times.values(), "the last try counts"
    assert saved.read_text() == ran.stdout


def leave_something(left: list[subprocess.Popen[bytes]], replay: soak.Soak, directory: Path, client: str) -> None:
    left.append(subprocess.Popen(["sleep", "infinity"]))
    (directory / "shared-memory").mkdir(parents=True)
    (directory / "shared-memory" / "a region").touch()
    replay._report.problems.append("3 chunks had wrong bytes")
    raise LeakError("left behind: thread 'lost'")


def test_each_broken_promise_has_a_line_and_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoStore:
        def __init__(self, seed: int) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(soak, "FaultyStore", NoStore)
    monkeypatch.setattr(soak.Soak, "open_and_close", lambda replay, directory, client: None)
    left: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(soak.Soak, "run", lambda *arguments: leave_something(left, *arguments))
    app = Typer()
    app.command()(soak.soak)
    ran = CliRunner().invoke(app, ["--requests", "100"])
    (process,) = left
    process.kill()
    process.wait()
    assert ran.exit_code == 1
    assert ran.stdout.splitlines()[-4:] == [
        "broken promise: 3 chunks had wrong bytes",
        "broken promise: left behind: thread 'lost'",
        "broken promise: a region is left in shared memory",
        f"broken promise: process {process.pid} is left",
    ]


def test_requests_that_are_not_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play_short_requests(2_000) == []
    monkeypatch.setattr(Lookups, "finish", lambda lookups, request: None)
    problems = play_short_requests(2_000)
    assert any("_requests has" in problem for problem in problems), problems


def test_answers_that_are_not_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Questions, "forget", lambda questions, req_id: None)
    problems = play_short_requests(2_000)
    assert any("_answers has" in problem for problem in problems), problems
