"""The tables of docs/contract.md, row by row: what is written there is what happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from manager_rig import R1, R2, R3, R4, Rig, key, keys

from tiering.errors import KeysNotReadyError
from tiering.keys import OffloadKey
from tiering.offloading_manager import PrefixLookup
from tiering.testing import check_quiescent
from tiering.transfer_specs import PrepareStoreOutput

CONTRACT = Path(__file__).parents[2] / "docs" / "contract.md"

IDLE, WRITING, PROMOTED, BELOW, UNANSWERED, NOWHERE = 1, 3, 4, 5, 6, 9
NEW, NEW_TOO = 11, 12


class Contract(Rig):
    """Ten rows with one chunk in each state that the tables speak of; two are idle."""

    def __init__(self) -> None:
        super().__init__(10, "disk", promotion_limit=1.0)
        self.fill(*keys(2, IDLE))
        self.tier.objects = set(keys(PROMOTED, BELOW))
        self.tier.answers = {key(UNANSWERED): None}
        self.write(self.prepare(R3, keys(WRITING)))
        self.statuses(R3, key(PROMOTED))
        self.step()

    def status(self, number: int) -> str:
        return self.manager.status(key(number), R1).name

    def prefix(self, wanted: Iterable[OffloadKey]) -> str:
        found: PrefixLookup = self.manager.lookup_prefix(wanted, R1)
        return f"{found.num_ready} ready, then {found.next_status.name}"

    def start_load(self, wanted: Iterable[OffloadKey]) -> str:
        before = self.primary.rows.num_busy()
        try:
            rows = self.manager.prepare_load(wanted, R1).block_ids.tolist()
        except KeysNotReadyError as error:
            assert self.primary.rows.num_busy() == before
            return f"KeysNotReadyError for {self.names(error.keys)}, no row pinned"
        assert self.primary.rows.num_busy() == before + len(rows)
        held = {row: one for one, row in self.primary.rows.index.items()}
        loaded = sorted(held[row] for row in rows)
        self.manager.complete_load(loaded)
        return f"pins {self.names(loaded)}" if rows else "nothing"

    def end_loads(self, wanted: Iterable[OffloadKey], *, open_loads: Iterable[OffloadKey] = ()) -> str:
        self.manager.prepare_load(open_loads, R1)
        before = self.manager.get_stats()["completions_unexpected"], self.primary.rows.num_busy()
        self.manager.complete_load(wanted)
        unexpected = self.manager.get_stats()["completions_unexpected"] - before[0]
        released = before[1] - self.primary.rows.num_busy()
        self.manager.complete_load(open_loads)
        return self.completion(f"releases {released}" if released else "", unexpected)

    def start_store(self, wanted: Iterable[OffloadKey]) -> str:
        before = self.manager.get_stats()
        granted: PrepareStoreOutput | None = self.manager.prepare_store(wanted, R1)
        if granted is None:
            after = dict(self.manager.get_stats())
            assert after.pop("stores_refused") == before["stores_refused"] + 1
            assert after.items() <= before.items()
            return "None, nothing changed"
        assert len(granted.keys_to_store) == len(granted.store_spec.block_ids)
        self.manager.complete_store(granted.keys_to_store, success=False)
        return f"reserves {self.names(sorted(granted.keys_to_store))}" if granted.keys_to_store else "nothing"

    def end_stores(self, wanted: Iterable[OffloadKey], *, success: bool = True) -> str:
        self.write(self.prepare(R3, keys(NEW, NEW_TOO)))
        before = self.manager.get_stats()
        jobs = len(self.tier.jobs)
        self.manager.complete_store(wanted, success)
        after = self.manager.get_stats()
        assert (len(self.tier.jobs) - jobs) in (0, 1), "one job per tier"
        sent = self.tier.jobs[-1].keys if len(self.tier.jobs) > jobs else ()
        words = [f"{self.names(sorted(sent))} READY and sent to the tiers"] if sent else []
        words += [f"{after['rows_free'] - before['rows_free']} rows free"] * (after["rows_free"] > before["rows_free"])
        unexpected = after["completions_unexpected"] - before["completions_unexpected"]
        for left in keys(NEW, NEW_TOO):
            if left in self.primary._storing:
                self.manager.complete_store([left], success=False)
        return self.completion(", ".join(words), unexpected)

    def touch(self, wanted: Iterable[OffloadKey]) -> str:
        self.manager.touch(wanted)
        fresh = keys(*range(100, 106))
        assert self.manager.prepare_store(fresh, R1)
        self.step()
        evicted = self.manager.prepare_store(keys(200), R1)
        self.manager.complete_store([*fresh, key(200)], success=False)
        assert evicted is not None
        return f"{self.names(evicted.evicted_keys)} goes first"

    def finish_twice(self) -> str:
        open_stores = self.manager.get_stats()["stores_open"]
        self.finish(R3, R3, R4)
        assert self.manager.get_stats()["stores_open"] == open_stores
        self.manager.complete_store(keys(WRITING))
        return f"{self.status(WRITING)} once its store completes"

    def reset(self, number: int) -> str:
        self.manager.reset_cache()
        self.tier.answers = {key(number): False}
        return f"{self.status(number)} at once"

    @staticmethod
    def completion(effect: str, unexpected: int) -> str:
        words = [effect] * bool(effect) + [f"{unexpected} counted as unexpected"] * bool(unexpected)
        return ", ".join(words) or "nothing"

    @staticmethod
    def names(chunks: Iterable[OffloadKey]) -> str:
        known = {IDLE: "idle", 2: "idle too", WRITING: "being written", PROMOTED: "being promoted", BELOW: "in a tier"}
        known |= {UNANSWERED: "unanswered", NOWHERE: "nowhere", NEW: "new", NEW_TOO: "new too"}
        return ", ".join(known.get(int.from_bytes(one[:8], "big"), "other") for one in chunks)

    def end(self) -> None:
        """Everything that is still open ends."""
        self.manager.complete_store(keys(WRITING))
        self.tier.answers = {}
        self.end_jobs()
        self.finish(R1, R2, R3)
        self.end_jobs()
        check_quiescent(self.manager, self.num_rows, rows=self.rows, keys=self.seen)


STATES = {
    "idle": IDLE,
    "being written": WRITING,
    "being promoted": PROMOTED,
    "in a tier": BELOW,
    "unanswered": UNANSWERED,
    "nowhere": NOWHERE,
}

INPUTS: dict[str, Callable[[list[OffloadKey]], Iterable[OffloadKey]]] = {
    "list": list,
    "set": set,
    "iterator": iter,
}


def rows_of_the_test() -> dict[tuple[str, str], Callable[[Contract], str]]:
    rows: dict[tuple[str, str], Callable[[Contract], str]] = {}
    for name, number in STATES.items():
        rows["status", name] = lambda c, n=number: c.status(n)
        rows["lookup", name] = lambda c, n=number: str(c.manager.lookup(key(n), R1))
        rows["prepare_load", name] = lambda c, n=number: c.start_load(keys(n))
        rows["complete_load", name] = lambda c, n=number: c.end_loads(keys(n))
        rows["prepare_store", name] = lambda c, n=number: c.start_store(keys(n))
        rows["reset_cache", name] = lambda c, n=number: c.reset(n)
        if number != WRITING:
            rows["complete_store", name] = lambda c, n=number: c.end_stores(keys(n))
    for name, given in INPUTS.items():
        rows["prepare_load", f"{name}: idle, idle too"] = lambda c, g=given: c.start_load(g(keys(IDLE, 2)))
        rows["prepare_store", f"{name}: new, new too"] = lambda c, g=given: c.start_store(g(keys(NEW, NEW_TOO)))
        rows["complete_load", f"{name}: loading idle"] = lambda c, g=given: c.end_loads(
            g(keys(IDLE)), open_loads=keys(IDLE)
        )
        rows["complete_store", f"{name}: storing new, new too"] = lambda c, g=given: c.end_stores(g(keys(NEW, NEW_TOO)))
        rows["touch", f"{name}: idle"] = lambda c, g=given: c.touch(g(keys(IDLE)))
    for call, method in (
        ("lookup_prefix", Contract.prefix),
        ("prepare_load", Contract.start_load),
        ("complete_load", Contract.end_loads),
        ("prepare_store", Contract.start_store),
        ("complete_store", Contract.end_stores),
        ("touch", Contract.touch),
    ):
        rows[call, "no keys"] = lambda c, m=method: m(c, iter(()))
    for numbers, name in (
        ([IDLE, 2], "list: idle, idle too"),
        ([IDLE, IDLE, 2], "idle twice, idle too"),
        ([IDLE, WRITING, 2], "idle, being written, idle too"),
        ([IDLE, PROMOTED], "idle, being promoted"),
        ([IDLE, BELOW], "idle, in a tier"),
        ([IDLE, UNANSWERED, 2], "idle, unanswered, idle too"),
        ([NOWHERE, IDLE], "nowhere, idle"),
    ):
        rows["lookup_prefix", name] = lambda c, n=numbers: c.prefix(keys(*n))
    rows["lookup_prefix", "iterator: idle, idle too"] = lambda c: c.prefix(iter(keys(IDLE, 2)))
    rows["prepare_load", "idle twice"] = lambda c: c.start_load(keys(IDLE, IDLE))
    rows["prepare_load", "idle, being written, nowhere"] = lambda c: c.start_load(keys(IDLE, WRITING, NOWHERE))
    rows["complete_load", "loading idle, given twice"] = lambda c: c.end_loads(keys(IDLE, IDLE), open_loads=keys(IDLE))
    rows["complete_load", "loading idle, and nowhere"] = lambda c: c.end_loads(
        keys(IDLE, NOWHERE), open_loads=keys(IDLE)
    )
    rows["prepare_store", "new twice"] = lambda c: c.start_store(keys(NEW, NEW))
    rows["prepare_store", "idle, new, being written"] = lambda c: c.start_store(keys(IDLE, NEW, WRITING))
    rows["prepare_store", "more than there are rows"] = lambda c: c.start_store(keys(*range(100, 111)))
    rows["complete_store", "storing new, given twice"] = lambda c: c.end_stores(keys(NEW, NEW))
    rows["complete_store", "storing new, new too, failed"] = lambda c: c.end_stores(keys(NEW, NEW_TOO), success=False)
    rows["complete_store", "storing new, and idle"] = lambda c: c.end_stores(keys(NEW, IDLE))
    rows["touch", "list: idle, idle too"] = lambda c: c.touch(keys(IDLE, 2))
    rows["touch", "nowhere"] = lambda c: c.touch(keys(NOWHERE))
    rows["on_request_finished", "being written; told twice"] = Contract.finish_twice
    return rows


def rows_of_the_document() -> dict[tuple[str, str], str]:
    rows = {}
    for line in CONTRACT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            rows[cells[0].strip("`"), cells[1]] = cells[2].strip("`")
    return rows


ROWS = rows_of_the_test()


def test_document_and_test_have_the_same_rows() -> None:
    assert rows_of_the_document().keys() == ROWS.keys()


@pytest.mark.parametrize(("call", "state"), list(ROWS), ids=lambda part: part)
def test_result(call: str, state: str) -> None:
    contract = Contract()
    assert ROWS[call, state](contract) == rows_of_the_document()[call, state]
    contract.end()
