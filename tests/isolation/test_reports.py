"""What a tier reports besides the results of its calls reaches the engine from the other process, too."""

from __future__ import annotations

from pathlib import Path

from isolation_rig import isolated, keys
from test_isolated_data import content
from test_process_deaths import hostile

from tiering.offloading_manager import LookupStatus
from tiering.tier import BreakerConfig

PENDING, ABSENT = LookupStatus.PENDING, LookupStatus.ABSENT


def test_chunks_that_come_back_without_a_store(shared_memory: Path, trap: Path) -> None:
    with isolated(hostile("lose all", trap), shared_memory, events=True) as rig:
        rig.store(keys(range(4)))
        assert content(rig) == set(keys(range(4)))
        rig.forget_rows()
        assert rig.load(keys([0])) == 0, "lost: all of them"
        assert rig.statuses(keys(range(4))) == [ABSENT] * 4
        removed = [one for event in rig.manager.take_events() if event.tier == rig.tier.name for one in event.keys]
        assert sorted(removed) == sorted(keys(range(4)))
        trap.unlink()
        rig.store(keys([2, 9]))
        assert content(rig) == set(keys([0, 1, 2, 3, 9])), "each announced once"
        rig.forget_rows()
        assert rig.statuses(keys([0, 1, 2, 3, 9, 8])) == [PENDING] * 5 + [ABSENT]
        rig.forget_rows()
        assert rig.load(keys(range(4))) == 4
        rig.check(keys(range(10)))


def test_corrupt_chunks_are_counted_and_quarantine_the_tier(shared_memory: Path, trap: Path) -> None:
    breaker = BreakerConfig(max_corrupt=3, quarantine_for=600)
    with isolated(hostile("report corrupt", trap, breaker=breaker), shared_memory) as rig:
        rig.store(keys(range(4)))
        rig.forget_rows()
        assert rig.load(keys(range(2))) == 0
        assert (rig.stats()["corrupt"], rig.stats()["breaker"]) == (2, "closed")
        assert rig.load(keys([2])) == 0
        assert (rig.stats()["corrupt"], rig.stats()["breaker"]) == (3, "open")
        rig.check(keys(range(4)))
