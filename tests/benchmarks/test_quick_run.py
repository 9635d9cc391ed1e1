"""The benchmarks run and check what they move; what they measure is nobody's promise here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
NAMES = ("manager", "region", "device", "device_path", "disk", "object_store", "isolation")


def run_benchmarks(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", NAMES)
def test_quick_run(name: str, tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ran = run_benchmarks(name, "--quick", "--json", results, "--directory", scratch)
    assert (ran.returncode, ran.stderr) == (0, "")
    (lines,) = json.loads(results.read_text())["results"].values()
    assert lines
    for line in lines:
        assert min(line["ours"], line["others"], line["times_as_long"]) > 0
        assert line["case"] in ran.stdout
    assert list(scratch.iterdir()) == []


def test_unknown_name() -> None:
    ran = run_benchmarks("manager", "dsik")
    assert ran.returncode == 2
    assert "dsik; allowed: manager, region, device" in ran.stderr
