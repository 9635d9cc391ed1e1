"""What the manager counts: per tier, never less than before, and nothing in use at the end."""

from __future__ import annotations

import random
from collections.abc import Mapping

from manager_rig import R1, R2, R3, Rig, keys

COUNTERS = (
    "stored_chunks",
    "stored_bytes",
    "store_failures",
    "loaded_chunks",
    "loaded_bytes",
    "load_failures",
    "faults",
)


def counted(rig: Rig) -> Mapping[str, Mapping[str, int]]:
    tiers = rig.manager.get_stats()["tiers"]
    return {name: {counter: tiers[name][counter] for counter in COUNTERS} for name in tiers}


def test_tc_82_two_tiers_of_one_type() -> None:
    """A second manager comes and goes meanwhile, and counts for itself."""
    choose = random.Random(82)
    rig = Rig(8, "one", "two", promotion_limit=1.0)
    before = counted(rig)
    for number in range(1_000):
        request = choose.choice((R1, R2, R3))
        wanted = keys(*(choose.randrange(20) for _ in range(3)))
        rig.statuses(request, *wanted)
        store = rig.manager.prepare_store(wanted[:2], request)
        if store is not None:
            rig.write(store)
            rig.manager.complete_store(store.keys_to_store, choose.random() < 0.9)
        rig.step()
        for tier in rig.tiers:
            if choose.random() < 0.1:
                tier.raise_in("submit_store", OSError("full"))
            while tier.jobs:
                tier.finish(succeeded=choose.random() < 0.8)
        rig.finish(request)
        now = counted(rig)
        assert all(now[name][counter] >= before[name][counter] for name in now for counter in COUNTERS)
        before = now
        if number == 500:
            other = Rig(4, "one", "two")
            other.store(R1, *keys(1))
            other.end_jobs()
            other.finish(R1)
            assert counted(other)["one"]["stored_chunks"] == 1
            other.manager.shutdown()
    rig.finish(R1, R2, R3)
    rig.end_jobs()
    assert before["one"] != before["two"]
    stats = rig.manager.get_stats()
    assert [stats["tiers"][name]["jobs_in_flight"] for name in ("one", "two")] == [0, 0]
    assert {name: stats[name] for name in ("rows_promoting", "rows_held", "stores_open", "requests")} == {
        "rows_promoting": 0,
        "rows_held": 0,
        "stores_open": 0,
        "requests": 0,
    }
    rig.check()
