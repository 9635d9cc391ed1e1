"""The benchmarks run and check what they move; what they measure is nobody's promise here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def run_benchmarks(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)


def test_quick_run(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ran = run_benchmarks("--quick", "--json", results, "--directory", scratch)
    assert (ran.returncode, ran.stderr) == (0, "")
    found = json.loads(results.read_text())["results"]
    assert {name: len(lines) for name, lines in found.items()} == {"manager": 16, "region": 6, "device": 6, "disk": 6}
    for line in (line for lines in found.values() for line in lines):
        assert min(line["ours"], line["others"], line["times_as_long"]) > 0
        assert line["case"] in ran.stdout
    assert all(line["cpu_seconds_per_gb"] > 0 for line in found["disk"])
    assert list(scratch.iterdir()) == []


def test_unknown_name() -> None:
    ran = run_benchmarks("manager", "dsik")
    assert ran.returncode == 2
    assert "dsik; allowed: manager, region, device, disk" in ran.stderr
