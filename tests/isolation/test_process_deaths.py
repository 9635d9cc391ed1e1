"""Whatever ends the process of a tier, or makes it useless, costs misses: rows come back, bytes stay right."""

from __future__ import annotations

import logging
import os
import random
import re
import signal
from functools import partial
from pathlib import Path

import pytest
from isolation_rig import IsolationRig, is_alive, isolated, keys, wait_until
from test_isolated_data import content, disk, indexless, memory

from tiering.errors import PermanentTierError
from tiering.isolation import RestartDelays
from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus
from tiering.registry import resolve_tier
from tiering.tier import BreakerConfig, LimitsConfig, TierConfig

NEVER = RestartDelays(3600.0, 3600.0)


def hostile(deed: str, trap: Path, **settings: object) -> TierConfig:
    settings = {"limits": memory().limits, "breaker": memory().breaker} | settings
    return resolve_tier("hostile").config_type(deed=deed, while_exists=trap, **settings)  # type: ignore[call-arg,arg-type]


def runs_again(rig: IsolationRig, wanted: int) -> bool:
    """Whether the tier has done a store and the load of it."""
    rig.forget_rows()
    rig.store(keys([wanted]))
    rig.forget_rows()
    return rig.load(keys([wanted])) == 1


def are_noted(root: Path, wanted: list[OffloadKey]) -> bool:
    """Whether the index files of a disk tier know the chunks; it notes a little later what it has stored."""
    try:
        index = b"".join(path.read_bytes() for path in root.rglob("index.*"))
    except FileNotFoundError:  # a newer one has taken its place
        return False
    return all(one in index for one in wanted)


@pytest.mark.parametrize("seed", range(3))
def test_killed_in_the_middle_of_loads_and_stores(seed: int, shared_memory: Path, tmp_path: Path) -> None:
    choose = random.Random(seed)
    kept: list[OffloadKey] = []
    lost: list[OffloadKey] = []
    with isolated(disk(tmp_path, capacity=2**24), shared_memory, num_rows=64) as rig:
        for begin in range(0, 320, 32):
            kept += keys(range(begin, begin + 16))
            rig.store(kept[-16:])
            wait_until(partial(are_noted, tmp_path, kept[-16:]))
            rig.forget_rows()
            requests = [rig.request() for _ in range(8)]
            for number, request in enumerate(requests):
                rig.manager.lookup_prefix(choose.sample(kept, 2), request)
                lost += keys(range(begin + 16 + 2 * number, begin + 18 + 2 * number))
                rig.begin_store(lost[-2:])
            num_open = choose.randrange(1, rig.num_open_jobs() + 1)
            while rig.num_open_jobs() > num_open:
                rig.manager.on_schedule_end()
            rig.kill()
            rig.settle()
            for request in requests:
                rig.manager.on_request_finished(request)
            rig.check(kept + lost)
            wait_until(lambda number=begin: runs_again(rig, 10_000 + number))
        assert rig.tier.num_ends == 10
        rig.forget_rows()
        there = []
        for one in kept + lost:
            (status,) = rig.statuses([one])
            rig.forget_rows()
            there.append(rig.load([one]))
            assert there[-1] == (status is LookupStatus.PENDING)
        assert all(there[: len(kept)])


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("exit", "its process ended with exit code 3"),
        ("segfault", "its process ended with SIGSEGV"),
        ("abort", "its process ended with SIGABRT"),
        ("write garbage to the engine", "its process sent a frame of 4294967295 bytes, more than 268435456"),
        ("hang up and write on", "its process ended with SIGKILL"),
    ],
)
def test_a_load_that_ends_the_process(
    deed: str, said: str, shared_memory: Path, trap: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated(hostile(deed, trap), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        first = rig.tier.pid
        request = rig.request()
        for one in keys(range(4)):
            assert rig.manager.lookup(one, request) is None
        rig.manager.on_schedule_end()
        while rig.stats()["jobs_in_flight"]:
            rig.manager.on_schedule_end()
        assert not is_alive(first), "its rows are free, and it could still write into them"
        assert rig.stats()["load_failures"] == 4
        assert rig.manager.lookup(keys([0])[0], request) is False
        rig.manager.on_request_finished(request)
        assert [record.message for record in caplog.records if "next start" in record.message] == [
            f"tier hostile: {said}; next start in 0.0 s"
        ]
        trap.unlink()
        wait_until(lambda: runs_again(rig, 10))
        assert rig.tier.pid != first
        rig.check(keys([10]))


@pytest.mark.parametrize("deed", ["raise SystemExit", "answer with errors", "print garbage", "print without end"])
def test_a_load_that_does_not_end_the_process(
    deed: str, shared_memory: Path, trap: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with isolated(hostile(deed, trap), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        assert rig.load(keys(range(4))) == (4 if deed.startswith("print") else 0)
        trap.unlink()
        assert rig.load(keys(range(4))) == 4
        assert rig.tier.num_ends == 0
        rig.check(keys(range(4)))
    assert capfd.readouterr() == ("", ""), "what it prints is in the engine's log"


def test_a_call_that_an_ended_load_has_left_behind_keeps_its_rows(shared_memory: Path, trap: Path) -> None:
    with isolated(hostile("leave a call behind", trap), shared_memory) as rig:
        rig.store(keys([0]))
        rig.forget_rows()
        request = rig.request()
        assert rig.manager.lookup(keys([0])[0], request) is None
        rig.manager.on_schedule_end()
        for number in (1, 2):  # when they are there, the load has failed long ago
            rig.begin_store(keys([number]))
            wait_until(
                lambda number=number: rig.manager.on_schedule_end() or rig.stats()["stored_chunks"] == 1 + number
            )
        assert rig.stats()["jobs_in_flight"] == 1
        trap.unlink()
        wait_until(lambda: rig.manager.on_schedule_end() or not rig.stats()["jobs_in_flight"])
        assert rig.stats()["load_failures"] == 1
        rig.manager.on_request_finished(request)
        rig.check(keys([0, 1, 2]))


def test_what_it_leaks_is_not_the_engines(shared_memory: Path, trap: Path) -> None:
    def resident_bytes(pid: int) -> int:
        return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024  # type: ignore[index]

    with isolated(hostile("leak", trap), shared_memory) as rig:
        rig.store(keys(range(2)))
        rig.forget_rows()
        before = resident_bytes(os.getpid())
        assert rig.load(keys(range(2))) == 2
        assert resident_bytes(rig.tier.pid) > 200 * 2**20
        assert resident_bytes(os.getpid()) - before < 20 * 2**20


def test_a_stuck_process_is_killed_and_gives_its_rows_back(shared_memory: Path, trap: Path) -> None:
    limits = LimitsConfig(lookup_timeout=0.2, load_timeout=0.2, store_timeout=0.2)
    with isolated(hostile("block", trap, limits=limits), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        assert rig.load(keys(range(4))) == 0
        rig.settle()
        assert rig.stats()["load_timeouts"] == 4
        assert rig.tier.num_ends == 1
        trap.unlink()
        wait_until(lambda: runs_again(rig, 10))
        rig.check(keys([10]))


def test_a_stuck_process_does_not_hold_up_the_shutdown(shared_memory: Path, trap: Path) -> None:
    with isolated(hostile("block", trap), shared_memory, drain_seconds=0.05) as rig:
        rig.store(keys([0]))
        rig.forget_rows()
        assert rig.manager.lookup(keys([0])[0], rig.request()) is None
        rig.manager.on_schedule_end()


def test_while_there_is_no_process_everything_is_a_miss(
    shared_memory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with isolated(disk(tmp_path), shared_memory, restart_delays=NEVER) as rig:
        rig.store(keys(range(8)))
        rig.kill()
        wait_until(lambda: rig.tier.num_ends)
        rig.forget_rows()
        assert rig.load(keys(range(8))) == 0
        rig.store(keys(range(8)))
        assert rig.stats()["store_failures"] == 8
        rig.check(keys(range(8)))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        "tier disk: its process ended with SIGKILL; next start in 3600.0 s",
        "tier disk failed in store: TemporaryTierError: its process ended with SIGKILL; this costs misses only",
    ]


def test_questions_to_no_process_are_answered_absent(shared_memory: Path) -> None:
    with isolated(indexless(), shared_memory, restart_delays=NEVER) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        request = rig.request()
        assert [rig.manager.status(one, request) for one in keys(range(4))] == [LookupStatus.UNKNOWN] * 4
        rig.kill()
        rig.settle()
        assert [rig.manager.status(one, request) for one in keys(range(4))] == [LookupStatus.ABSENT] * 4
        assert rig.stats()["lookup_failures"] == 4
        rig.manager.on_request_finished(request)
        rig.check(keys(range(4)))


def test_the_breaker_closes_again_without_a_restart_of_the_engine(shared_memory: Path, trap: Path) -> None:
    breaker = BreakerConfig(window=4, min_failures=2, open_for=0.01)
    with isolated(hostile("exit", trap, breaker=breaker), shared_memory) as rig:

        def is_open() -> bool:
            rig.store(keys([0]))
            rig.forget_rows()
            rig.load(keys([0]))
            return rig.stats()["breaker_opened"] > 0

        wait_until(is_open)
        trap.unlink()
        wait_until(lambda: runs_again(rig, 10))
        assert rig.stats()["breaker"] == "closed"


@pytest.mark.parametrize("survives", [True, False], ids=["disk", "memory"])
def test_events_replay_to_what_is_there_after_a_death(survives: bool, shared_memory: Path, tmp_path: Path) -> None:
    config = disk(tmp_path) if survives else memory()
    with isolated(config, shared_memory, events=True) as rig:
        rig.store(keys(range(8)))
        assert len(content(rig)) == 8
        if survives:
            wait_until(lambda: sum(path.stat().st_size for path in tmp_path.rglob("index.*.journal")) > 8 * 12)
        rig.kill()
        wait_until(lambda: rig.tier.num_ends)
        wait_until(lambda: runs_again(rig, 10))
        removed = {one for event in rig.manager.take_events() if event.tier == rig.tier.name for one in event.keys}
        removed -= set(keys([10]))
        rig.forget_rows()
        there = {one for one in keys(range(8)) if rig.load([one])}
        assert (removed | there, removed & there) == (set(keys(range(8))), set())
        assert bool(there) == survives


def test_what_goes_wrong_in_opening_is_said(shared_memory: Path, trap: Path) -> None:
    with pytest.raises(PermanentTierError, match=re.escape("tier 'hostile': ValueError: the moon is not full")):
        isolated(hostile("refuse", trap), shared_memory).__enter__()
    with pytest.raises(PermanentTierError, match="tier 'hostile': its process ended with exit code 7"):
        isolated(hostile("end in open", trap), shared_memory).__enter__()


def test_a_second_owner_of_a_directory_is_refused_with_its_own_words(shared_memory: Path, tmp_path: Path) -> None:
    other = shared_memory / "other"
    other.mkdir()
    with isolated(disk(tmp_path / "disk"), shared_memory) as rig, pytest.raises(PermanentTierError) as refused:
        isolated(disk(tmp_path / "disk"), other).__enter__()
    assert f"is in use by process {rig.tier.pid}" in str(refused.value)
    other.rmdir()


def test_a_process_that_cannot_open_its_tier_again_is_tried_again(
    shared_memory: Path, trap: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trap.unlink()
    with isolated(hostile("refuse", trap), shared_memory) as rig:
        trap.touch()
        rig.kill()
        wait_until(lambda: rig.tier.num_ends >= 3)
        trap.unlink()
        wait_until(lambda: runs_again(rig, 10))
    said = [record.message for record in caplog.records if "next start" in record.message]
    assert said[:2] == [
        "tier hostile: its process ended with SIGKILL; next start in 0.0 s",
        "tier hostile: ValueError: the moon is not full; next start in 0.0 s",
    ]


def test_a_process_that_hangs_in_opening_its_tier_again_is_killed(
    shared_memory: Path, trap: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trap.unlink()
    with isolated(hostile("hang in open", trap), shared_memory, reopen_seconds=2.0) as rig:
        trap.touch()
        rig.kill()
        wait_until(lambda: rig.tier.num_ends == 2)
        trap.unlink()
        wait_until(lambda: runs_again(rig, 10))
        assert rig.stats()["process_ends"] == rig.tier.num_ends
    said = [record.message for record in caplog.records if "next start" in record.message]
    assert said[:2] == [
        "tier hostile: its process ended with SIGKILL; next start in 0.0 s",
        "tier hostile: its process has not opened the tier in 2.0 s; next start in 0.0 s",
    ]


def test_a_process_that_hangs_in_opening_its_tier_again_does_not_hold_up_the_shutdown(
    shared_memory: Path, trap: Path
) -> None:
    trap.unlink()
    with isolated(hostile("hang in open", trap), shared_memory) as rig:
        trap.touch()
        first = rig.tier.pid
        rig.kill()
        wait_until(lambda: rig.tier.pid != first)


def test_signals_meant_for_the_engine_do_not_end_it(shared_memory: Path) -> None:
    with isolated(memory(), shared_memory) as rig:
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(rig.tier.pid, number)
        assert runs_again(rig, 1)
        assert rig.tier.num_ends == 0
