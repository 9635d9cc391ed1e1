"""The control of the control: a replay against a tier that returns wrong bytes has to fail."""

from __future__ import annotations

import json

from replay_command import run_replay
from replay_setup import ReplaySetup


def test_wrong_bytes_are_seen_by_every_rank_they_reach(setup: ReplaySetup) -> None:
    setup.write_config("{type: spoiling}")
    ended = run_replay(*setup.arguments(60))
    report = json.loads(ended.output)
    assert ended.code == 1
    assert report["hits"]["spoiling"] > 0
    # A flipped bit is in one rank's bytes, a row of another chunk is wrong on both.
    assert report["mismatches"] > report["hits"]["spoiling"]
    assert (report["leaks"], setup.region_files()) == (0, [])
