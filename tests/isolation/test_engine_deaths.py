"""However the engine ends, the process of its tier ends too, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from isolation_rig import is_alive, isolated, key, wait_until
from test_isolated_data import memory

from tiering.errors import ConfigError, TierError
from tiering.region.reclaim import reclaim_dead_regions
from tiering.registry import register_tier
from tiering.secondary_tier import TransferJob
from tiering.testing import MemoryTier, MemoryTierConfig

HERE = Path(__file__).parent


@contextmanager
def engine(shared_memory: Path, trap: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    path = os.pathsep.join(map(str, (HERE, HERE / "installed", HERE.parents[1])))
    with subprocess.Popen(
        [sys.executable, "-W", "error", HERE / "engine_process.py", shared_memory, trap],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("is_blocked", [False, True], ids=["idle", "blocked"])
def test_a_killed_engine(is_blocked: bool, shared_memory: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    if is_blocked:
        trap.touch()
    with engine(shared_memory, trap) as (process, tier_pid):
        process.kill()
        process.wait()
        wait_until(lambda: not is_alive(tier_pid))
    wait_until(lambda: reclaim_dead_regions(shared_memory))


@pytest.mark.parametrize("is_blocked", [False, True], ids=["idle", "blocked"])
def test_an_engine_that_exits_without_a_shutdown(is_blocked: bool, shared_memory: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    if is_blocked:
        trap.touch()
    with engine(shared_memory, trap) as (process, tier_pid):
        _, errors = process.communicate("\n")
        assert (process.returncode, errors) == (0, None)
        assert not is_alive(tier_pid)
        assert list(shared_memory.iterdir()) == []


def test_a_forked_child_of_the_engine_leaves_the_tier_alone(shared_memory: Path) -> None:
    with isolated(memory(), shared_memory) as rig:
        child = os.fork()
        if child == 0:
            try:
                rig.tier.submit_load(TransferJob(0, (key(0),), (0,)))
            except TierError:
                signal.alarm(20)  # a shutdown that waits for threads that are not here ends as a failure
                rig.tier.shutdown()
                os._exit(42)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        rig.store([key(0)])
        assert rig.tier.num_ends == 0


def test_a_tier_that_only_this_process_knows_is_refused(shared_memory: Path) -> None:
    class CodeConfig(MemoryTierConfig):
        type: str = "isolation-by-code"  # type: ignore[assignment]

    class CodeTier(MemoryTier):
        tier_type = "isolation-by-code"
        config_type = CodeConfig

    register_tier(CodeTier)
    with pytest.raises(ConfigError, match=r"'isolation-by-code' is registered by code.*; allowed: thread, or an inst"):
        isolated(CodeConfig(), shared_memory).__enter__()
