"""The manager against a model, through random histories that Hypothesis makes up and cuts down.

The model is what an engine and the consumers of events may rely on: sets of chunks per tier, known from events alone,
and the bytes that belong to each key. Copies are as late as they may be: a worker writes a row just before it reports
the store, and reads one just before it reports the load; the scripted tier does the same. So a row that is given out
too early shows as wrong bytes.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from manager_rig import ROW_BYTES, key

from tiering.jobs import JobLoop, TierWorker
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.rows import WRITING
from tiering.testing import (
    MemoryTier,
    MemoryTierConfig,
    PlainRows,
    ResourceWatch,
    ScriptedTier,
    check_quiescent,
    drain,
    fill_row,
    key_pattern,
    row_matches,
)
from tiering.tier import BreakerConfig, LimitsConfig, TierContext

NUM_ROWS = 8
CHUNKS = [key(number) for number in range(16)]

some_chunks = st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=6)
a_request = st.sampled_from([ReqContext(f"request {number}") for number in range(3)] + [ReqContext()])
a_place = st.integers(min_value=0, max_value=63)


class AsksEachTime(MemoryTier):
    contains = None  # type: ignore[assignment]


class ManagerMachine(RuleBasedStateMachine):
    """Rules are what an engine, its workers, and a tier may do at any time."""

    @initialize(
        policy=st.sampled_from(["lru", "arc", "arc_paper"]),
        memory_first=st.booleans(),
        knows_keys=st.booleans(),
        promotion_limit=st.sampled_from([0.25, 1.0]),
        hold_limit=st.sampled_from([0.0, 0.5, 1.0]),
        breaker=st.sampled_from([BreakerConfig(), BreakerConfig(min_failures=10**6)]),
        store_share=st.sampled_from([0.25, 1.0]),
    )
    def build(
        self,
        *,
        policy: str,
        memory_first: bool,
        knows_keys: bool,
        promotion_limit: float,
        hold_limit: float,
        breaker: BreakerConfig,
        store_share: float,
    ) -> None:
        self.undo = ExitStack()
        self.undo.enter_context(ResourceWatch())
        self.now = 0.0
        self.rows = PlainRows(NUM_ROWS, ROW_BYTES)
        self.scripted = ScriptedTier("scripted", self.rows, enable_events=True)
        self.scripted.breaker = breaker
        self.scripted.limits = LimitsConfig(store_share=store_share)
        self.loop = JobLoop()
        made: list[MemoryTier] = []

        def make_tier(context: TierContext) -> MemoryTier:
            made.append((MemoryTier if knows_keys else AsksEachTime)(MemoryTierConfig(max_chunks=6), context))
            return made[0]

        worker = TierWorker(
            make_tier,
            self.loop,
            self.rows.row_views,
            name="memory",
            row_bytes=ROW_BYTES,
            namespace=Namespace("model", row_bytes=ROW_BYTES),
            enable_events=True,
        )
        self.undo.callback(worker.shutdown)
        (self.memory,) = made
        self.primary = CPUPrimaryTierOffloadingManager(NUM_ROWS, policy, True, mmap_region=self.rows)
        self.manager = TieringOffloadingManager(
            self.primary,
            [worker, self.scripted] if memory_first else [self.scripted, worker],
            row_bytes=ROW_BYTES,
            promotion_limit=promotion_limit,
            hold_limit=hold_limit,
            hold_seconds=10.0,
            clock=lambda: self.now,
        )
        self.content: dict[str, set[OffloadKey]] = {"cpu": set(), "memory": set(), "scripted": set()}
        self.stores: list[dict[OffloadKey, int]] = []
        self.loads: list[dict[OffloadKey, int]] = []

    def settle(self) -> None:
        """Let the loop do all that it was given, so that a history always goes the same way."""
        self.loop.wait_for(asyncio.sleep(0))

    # -- the engine -------------------------------------------------------------------------------------------------

    @rule(request=a_request, chunks=some_chunks)
    def begin_store(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        store = self.manager.prepare_store(chunks, request)
        if store is not None and store.keys_to_store:
            assert self.content["cpu"].isdisjoint(store.keys_to_store)
            self.stores.append(dict(zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True)))

    @precondition(lambda self: self.stores)
    @rule(place=a_place, success=st.booleans())
    def end_store(self, place: int, success: bool) -> None:
        store = self.stores.pop(self.first_in_order(self.stores, place))
        for stored, row in store.items():
            fill_row(self.rows.array[row], stored)
        self.manager.complete_store(store, success)

    @rule(request=a_request, chunks=some_chunks)
    def look_up(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        self.take_events()
        for chunk in chunks:
            status = self.manager.status(chunk, request)
            assert (status is LookupStatus.READY) == (chunk in self.content["cpu"])
            if status is LookupStatus.PENDING:
                assert chunk in self.primary.rows.index, "pending without anybody who brings it"
            # A promotion may have evicted something else: the next answers are about the state after it.
            self.take_events()

    @rule(request=a_request, chunks=some_chunks)
    def begin_load(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        found = self.manager.lookup_prefix(chunks, request)
        ready = list(dict.fromkeys(chunks[: found.num_ready]))
        rows = self.manager.prepare_load(ready, request).block_ids.tolist()
        if ready:
            self.loads.append(dict(zip(ready, rows, strict=True)))

    @precondition(lambda self: self.loads)
    @rule(place=a_place)
    def end_load(self, place: int) -> None:
        load = self.loads.pop(self.first_in_order(self.loads, place))
        for loaded, row in load.items():
            assert row_matches(self.rows.array[row], loaded), "the row was given to somebody else during the load"
        self.manager.complete_load(load)

    @rule(chunks=some_chunks)
    def touch(self, chunks: list[OffloadKey]) -> None:
        self.manager.touch(chunks)

    @rule(request=a_request)
    def finish(self, request: ReqContext) -> None:
        self.manager.on_request_finished(request)

    @rule()
    def step(self) -> None:
        self.manager.on_schedule_end()

    @rule()
    def wait_long(self) -> None:
        self.now += 20.0

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.take_events()
        assert self.content["cpu"] == set()

    # -- the scripted tier ------------------------------------------------------------------------------------------

    @precondition(lambda self: self.scripted.jobs)
    @rule(place=a_place, flags=st.lists(st.booleans(), min_size=6, max_size=6))
    def end_job(self, place: int, flags: list[bool]) -> None:
        job = self.scripted.jobs[place % len(self.scripted.jobs)]
        self.scripted.finish(job, flags[: len(job.keys)])

    @rule(chunk=st.sampled_from(CHUNKS), answer=st.sampled_from([None, True, False, "own"]))
    def change_answer(self, chunk: OffloadKey, answer: bool | str | None) -> None:
        self.scripted.answers.pop(chunk, None)
        if not isinstance(answer, str):
            self.scripted.answers[chunk] = answer

    @rule(chunks=some_chunks)
    def lose(self, chunks: list[OffloadKey]) -> None:
        self.scripted.evict(*chunks)

    @rule(method=st.sampled_from(["lookup", "submit_store", "submit_load", "touch", "on_schedule_end"]))
    def break_next_call(self, method: str) -> None:
        self.scripted.raise_in(method, RuntimeError("broken"))

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def events_tell_the_content(self) -> None:
        self.settle()
        polls = not self.manager._polled
        self.take_events()
        index, ref_cnt = self.primary.rows.index, self.primary.rows.table.ref_cnt
        assert self.content["cpu"] == {one for one, row in index.items() if ref_cnt[row] != WRITING}
        assert self.content["scripted"] == self.scripted.objects
        if polls:  # a tier with threads is heard of once per step
            assert self.content["memory"] == set(self.memory.objects)

    @invariant()
    def every_row_is_accounted_for(self) -> None:
        rows, ref_cnt = self.primary.rows, self.primary.rows.table.ref_cnt
        assert len(set(rows.index.values())) == len(rows.index)
        free = set(rows._free)
        assert len(free) == rows.num_free
        assert free.isdisjoint(rows.index.values())
        assert not any(ref_cnt[row] for row in free)
        orphaned = set(range(NUM_ROWS)) - free - set(rows.index.values())
        assert all(ref_cnt[row] for row in orphaned), "a row that nobody has"
        tiers = self.manager._tiers
        reading = sum(len(job.rows) for tier in tiers for job in tier._stores)
        held = self.manager._lookups.num_held
        assert sum(count for count in ref_cnt if count > 0) == sum(map(len, self.loads)) + reading + held
        writing = sum(map(len, self.stores)) + self.manager._promotion.num_rows
        assert ref_cnt.count(WRITING) == writing

    @invariant()
    def readable_rows_have_the_right_bytes(self) -> None:
        for one in self.content["cpu"]:
            assert row_matches(self.rows.array[self.primary.rows.index[one]], one)
        for one, stored in self.memory.objects.items():
            assert stored == key_pattern(one, ROW_BYTES).tobytes()
        for one, stored in self.scripted.stored_bytes.items():
            assert stored == key_pattern(one, ROW_BYTES).tobytes()

    def teardown(self) -> None:
        if not hasattr(self, "manager"):
            return
        with self.undo:
            while self.stores:
                self.end_store(0, True)
            while self.loads:
                self.end_load(0)
            for number in range(3):
                self.manager.on_request_finished(ReqContext(f"request {number}"))
            self.manager.on_request_finished(ReqContext())
            self.scripted.finishes_itself = True
            drain(self.manager)
            check_quiescent(self.manager, NUM_ROWS, rows=self.rows, keys=CHUNKS)

    def take_events(self) -> None:
        for event in self.manager.take_events():
            held = self.content[event.tier]
            if event.removed:
                assert held.issuperset(event.keys)
                held.difference_update(event.keys)
            else:
                assert held.isdisjoint(event.keys)
                held.update(event.keys)

    @staticmethod
    def first_in_order(copies: list[dict[OffloadKey, int]], place: int) -> int:
        """Choose a copy that may end now: those of one key end in the order in which they began."""
        chosen = place % len(copies)
        while earlier := [n for n in range(chosen) if copies[n].keys() & copies[chosen].keys()]:
            chosen = earlier[0]
        return chosen


ManagerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
TestManagerMachine = ManagerMachine.TestCase
