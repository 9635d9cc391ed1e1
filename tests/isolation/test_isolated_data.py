"""A tier in a process of its own does what it would do on a thread: bytes, recency, events, usage."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from isolation_rig import NEVER_OPENS, PATIENT, ROW_BYTES, IsolationRig, isolated, key, keys

from tiering.offloading_manager import LookupStatus
from tiering.registry import resolve_tier
from tiering.testing import MemoryTierConfig
from tiering.tier import TierConfig

READY, PENDING, UNKNOWN, ABSENT = LookupStatus.READY, LookupStatus.PENDING, LookupStatus.UNKNOWN, LookupStatus.ABSENT
SETTINGS = {"limits": PATIENT, "breaker": NEVER_OPENS}


def memory(**settings: object) -> TierConfig:
    return MemoryTierConfig(**SETTINGS, **settings)  # type: ignore[arg-type]


def disk(root: Path, capacity: int = 2**22) -> TierConfig:
    config_type = resolve_tier("disk").config_type
    return config_type(type="disk", root_dirs=(root,), capacity=capacity, **SETTINGS)  # type: ignore[call-arg,arg-type]


def indexless() -> TierConfig:
    return resolve_tier("indexless").config_type(**SETTINGS)  # type: ignore[arg-type]


def content(rig: IsolationRig) -> set[bytes]:
    """What the tier holds, as its events say."""
    held: set[bytes] = set()
    for event in rig.manager.take_events():
        if event.tier == rig.tier.name:
            assert event.removed == (event.keys[0] in held)
            (held.difference_update if event.removed else held.update)(event.keys)
    return held


@pytest.mark.parametrize("make", [memory, indexless, lambda: disk(Path("disk"))], ids=["memory", "indexless", "disk"])
def test_bytes(
    make: Callable[[], TierConfig], shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with isolated(make(), shared_memory) as rig:
        for begin in range(0, 48, 12):
            rig.store(keys(range(begin, begin + 12)))
        rig.forget_rows()
        assert rig.tier.pid != os.getpid()
        for begin in range(0, 48, 12):
            assert rig.load(keys(range(begin, begin + 12))) == 12
        assert rig.load(keys([48])) == 0
        assert rig.stats()["loaded_bytes"] >= 36 * ROW_BYTES
        assert rig.tier.tier_type == rig.tier.name
        rig.check(keys(range(48)))


def test_what_a_tier_holds_in_memory_promotes_in_the_step_of_its_lookup(shared_memory: Path) -> None:
    with isolated(memory(), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        assert rig.statuses(keys(range(5))) == [PENDING] * 4 + [ABSENT]


def test_a_tier_without_an_index_is_asked(shared_memory: Path) -> None:
    with isolated(indexless(), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        assert rig.statuses(keys([0, 9])) == [UNKNOWN, UNKNOWN]
        assert rig.load(keys(range(5))) == 4


def test_requests_refresh_chunks_there(shared_memory: Path) -> None:
    with isolated(memory(max_chunks=3), shared_memory) as rig:
        for number in range(3):
            rig.store(keys([number]))
        assert rig.load(keys([0])) == 1, "from its row: the tier hears of it by touch"
        rig.store(keys([3]))
        rig.forget_rows()
        assert rig.statuses(keys(range(4))) == [PENDING, ABSENT, PENDING, PENDING]


@pytest.mark.parametrize("make", [lambda: memory(max_chunks=10), lambda: disk(Path("disk"), capacity=12 * 2**14)])
def test_events_replay_to_what_is_there(
    make: Callable[[], TierConfig], shared_memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with isolated(make(), shared_memory, events=True) as rig:
        for begin in range(0, 40, 8):
            rig.store(keys(range(begin, begin + 8)))
        rig.forget_rows()
        held = content(rig)
        assert 0 < len(held) < 40
        assert {one for one in keys(range(40)) if rig.load([one])} == held


def test_a_restarted_engine_finds_what_was_there(shared_memory: Path, tmp_path: Path) -> None:
    with isolated(disk(tmp_path), shared_memory) as rig:
        rig.store(keys(range(12)))
    with isolated(disk(tmp_path), shared_memory, events=True) as rig:
        assert rig.tier.describe().startswith(f"in process {rig.tier.pid}: ")
        assert content(rig) == set(keys(range(12)))
        assert rig.statuses(keys(range(12))) == [PENDING] * 12
        assert rig.load(keys(range(12))) == 12


def test_many_chunks_in_one_job(shared_memory: Path) -> None:
    with isolated(memory(), shared_memory, num_rows=2000) as rig:
        rig.store(keys(range(2000)))
        rig.forget_rows()
        assert rig.load(keys(range(2000))) == 2000
        assert rig.load([key(0)]) == 1
