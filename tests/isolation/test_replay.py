"""``tiering replay`` with a tier in a process of its own: every byte is compared, in two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[2]


def replay(config: Path) -> dict[str, Any]:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "tiering", "replay", "--format", "json", "--config", config),
            *("--generate", "60", "--row-bytes", "65536"),
        ],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_replay_from_an_isolated_disk_tier(shared_memory: Path, tmp_path: Path) -> None:
    config = tmp_path / "tiering.yaml"
    config.write_text(
        f"""\
cpu_bytes_to_use: {300 * 65536}
region: {{directory: {shared_memory}}}
secondary_tier_configs:
- {{type: disk, root_dirs: [{tmp_path / "disk"}], capacity: 300MiB, isolation: process}}
"""
    )
    for least_hits in (0, 100):  # the second one finds what the first has stored
        report = replay(config)
        assert (report["mismatches"], report["leaks"], os.listdir(shared_memory)) == (0, 0, [])
        assert report["hits"]["disk"] >= least_hits
