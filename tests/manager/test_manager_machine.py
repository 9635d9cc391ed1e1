"""Random histories of the manager, over scripted tiers and over a real one on a loop of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tiering.cascade import Cascade
from tiering.keys import OffloadKey
from tiering.lookups import Lookups
from tiering.promotion import Promotion
from tiering.rows import Rows
from tiering.testing import ManagerMachine, MemoryTier, MemoryTierConfig, run_machine
from tiering.tier import TierContext

NUM_PARTS = 8
QUICKLY = (Phase.generate,)


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_random_histories(part: int, machine_examples: int, machine_seed: int) -> None:
    run_machine(ManagerMachine, num_examples=machine_examples // NUM_PARTS, first_seed=machine_seed + part)


class AsksEachTime(MemoryTier):
    contains = None  # type: ignore[assignment]


class MachineWithMemoryTier(ManagerMachine):
    kind: type[MemoryTier] = MemoryTier

    def make_tier(self, context: TierContext) -> MemoryTier:
        self.memory = self.kind(MemoryTierConfig(max_chunks=6), context)
        return self.memory

    def check_tier(self, content: set[OffloadKey]) -> None:
        assert content == set(self.memory.objects)


class MachineWithTierThatIsAsked(MachineWithMemoryTier):
    kind = AsksEachTime


@pytest.mark.parametrize("machine", [MachineWithMemoryTier, MachineWithTierThatIsAsked])
def test_random_histories_with_a_tier_on_a_loop(machine: type[ManagerMachine]) -> None:
    run_machine(machine, num_examples=30, num_steps=40)


def finds_a_violation(machine: type[ManagerMachine]) -> bool:
    try:
        run_state_machine_as_test(
            seed(0)(type(machine.__name__, (machine,), {})),
            settings=settings(max_examples=3000, stateful_step_count=50, deadline=None, database=None, phases=QUICKLY),
        )
    except Exception:
        return True
    return False


@pytest.mark.parametrize(
    ("owner", "verb", "defect"),
    [
        (Rows, "orphan", lambda rows, orphans: rows.abort(orphans)),  # a late load writes into a row given out again
        (Rows, "lease", lambda rows, row: None),
        (Cascade, "finish", lambda cascade, job: None),
        (Promotion, "drop", lambda promotion, req_id: None),
        (Promotion, "_claim", lambda promotion, key, spare: promotion._rows.give_key(spare, key)),
        (Lookups, "finish", lambda lookups, request: None),
    ],
)
def test_a_manager_with_a_defect_is_found_out(
    owner: type, verb: str, defect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, verb, defect)
    assert finds_a_violation(ManagerMachine)
