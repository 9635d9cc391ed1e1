"""A replay that cannot start gives back, in this process, all that it had taken."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from replay_setup import ROW_BYTES, ReplaySetup

from tiering.config_file import load_config
from tiering.errors import PermanentTierError, RegionError, TieringError
from tiering.replay.generator import generate_trace
from tiering.replay.with_bytes import replay_bytes
from tiering.testing import ResourceWatch

REQUESTS = list(itertools.islice(generate_trace(1), 5))


def check_refused(setup: ReplaySetup, error: type[TieringError], config: Path) -> None:
    with ResourceWatch(setup.shared_memory), pytest.raises(error):
        replay_bytes(REQUESTS, load_config(config), num_ranks=2, row_bytes=ROW_BYTES)


def test_second_tier_cannot_open(setup: ReplaySetup) -> None:
    blocked = setup.directory / "blocked"
    blocked.touch()
    good = f"{{type: disk, name: good, root_dirs: [{setup.root}], capacity: 300MiB}}"
    bad = f"{{type: disk, name: bad, root_dirs: [{blocked}], capacity: 300MiB}}"
    check_refused(setup, PermanentTierError, setup.write_config(good, bad))
    setup.write_config(good)  # and the first tier's directory is free again
    check_refused(setup, PermanentTierError, setup.write_config(bad))


def test_no_directory_for_the_region(setup: ReplaySetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERING__region__directory", str(setup.directory / "missing"))
    check_refused(setup, RegionError, setup.config)
    assert not setup.root.exists()
