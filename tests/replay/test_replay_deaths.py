"""Processes that are killed, interrupted or refused: one clear end, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from replay_command import ReplayCommand, run_replay, wait_until
from replay_setup import ReplaySetup

FAR_TOO_MANY = 20_000  # requests; no test waits for their end
Start = Callable[..., ReplayCommand]


@pytest.fixture
def running(setup: ReplaySetup, start: Start) -> ReplayCommand:
    """A replay that is in the midst of storing and loading."""
    command = start(*setup.arguments(FAR_TOO_MANY))
    wait_until(lambda: setup.journal_bytes() > 30_000 or command.process.poll() is not None)
    assert command.process.poll() is None, command.end().errors
    return command


def test_what_a_killed_engine_had_stored_is_found_again(setup: ReplaySetup, running: ReplayCommand) -> None:
    running.kill_all()
    assert setup.region_files() == []
    report = run_replay(*setup.arguments(60)).report
    assert report["hits"]["disk"] > 100
    assert (report["mismatches"], report["leaks"], setup.region_files()) == (0, 0, [])


def test_a_killed_rank_ends_the_command(setup: ReplaySetup, running: ReplayCommand) -> None:
    ranks = running.ranks()
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    ended = running.end()
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors in {f"error: rank {rank} has died with exit code -9\n" for rank in (0, 1)}
    assert setup.region_files() == []


def test_interrupt_from_the_terminal(setup: ReplaySetup, running: ReplayCommand) -> None:
    running.signal_all(signal.SIGINT)
    ended = running.end()
    assert ended.code == 130
    assert "Traceback" not in ended.errors
    assert setup.region_files() == []


def has_loaded(library: str, pid: int) -> bool:
    return f"/lib{library}" in Path(f"/proc/{pid}/maps").read_text()


def test_interrupt_while_the_ranks_still_import(setup: ReplaySetup, start: Start) -> None:
    command = start(*setup.arguments(FAR_TOO_MANY))
    wait_until(lambda: [rank for rank in command.ranks() if has_loaded("torch", rank)] or not command.session())
    command.signal_all(signal.SIGINT)
    ended = command.end()
    assert (ended.code, ended.output, setup.region_files()) == (130, "", [])
    assert "Traceback" not in ended.errors


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_asked_to_end_before_the_ranks_have_joined(setup: ReplaySetup, start: Start, number: int, code: int) -> None:
    command = start(*setup.arguments(FAR_TOO_MANY))
    wait_until(lambda: setup.region_files() or command.process.poll() is not None)
    os.kill(command.process.pid, number)
    ended = command.end()
    assert (ended.code, ended.output, setup.region_files()) == (code, "", [])


def test_a_second_owner_of_the_directory_is_refused(setup: ReplaySetup, running: ReplayCommand) -> None:
    running.signal_all(signal.SIGSTOP)  # it owns the directory all the same
    before = setup.region_files()
    ended = run_replay(*setup.arguments(60))
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith("error: ")
    assert f"is in use by process {running.process.pid}; allowed: one engine per directory" in ended.errors
    assert ended.errors.count("\n") == 1
    assert setup.region_files() == before


def test_too_little_shared_memory(setup: ReplaySetup, mount_tmpfs: Callable[..., None]) -> None:
    mount_tmpfs(setup.shared_memory, 2**20)
    ended = run_replay(*setup.arguments(60))
    assert (ended.code, ended.output) == (1, "")
    assert ended.errors.startswith(f"error: {setup.shared_memory}/tiering_replay-")
    assert "needs 19664896 bytes" in ended.errors
    assert "cpu_bytes_to_use" in ended.errors
    assert ended.errors.count("\n") == 1
    assert setup.region_files() == []
    assert not setup.root.exists()
