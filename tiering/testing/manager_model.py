"""A manager over three scripted tiers, what an engine may rely on, and what always holds.

The model is sets of chunks per tier, known from events alone, and the bytes that belong to each key. What may happen to
it are the rules of `tiering.testing.manager_machine`.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.policies.policy import EvictionPolicy
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.registry import resolve_policy
from tiering.request import ReqContext
from tiering.row_table import WRITING
from tiering.secondary_tier import SecondaryTierManager
from tiering.testing.patterns import key_pattern
from tiering.testing.plain_rows import PlainRows
from tiering.testing.quiescence import check_quiescent
from tiering.testing.resource_watch import ResourceWatch
from tiering.testing.scripted_tier import ScriptedTier
from tiering.testing.stepping import drain
from tiering.tier import BreakerConfig, LimitsConfig, Tier, TierContext

__all__ = ["CHUNKS", "REQUESTS", "ManagerModel", "OpenCopy"]

T = TypeVar("T")

_NUM_RANKS = 2
_HALF_BYTES = 32
_ROW_BYTES = _NUM_RANKS * _HALF_BYTES
_NUM_ROWS = 8
_NUM_QUICK_LOADS = 100
CHUNKS = [make_offload_key(number.to_bytes(8, "big"), number % 3) for number in range(16)]
_PATTERNS = {chunk: key_pattern(chunk, _ROW_BYTES) for chunk in CHUNKS}
_BYTES = {chunk: pattern.tobytes() for chunk, pattern in _PATTERNS.items()}
REQUESTS = [ReqContext(f"request {number}") for number in range(3)] + [
    ReqContext(),
    ReqContext("restricted", {"kv_load_tiers": ["b", "c"], "kv_store_tiers": ["a"]}),
]


@dataclass(slots=True)
class OpenCopy:
    """A store or load of the engine that is open.

    Attributes:
        rows: its chunks and their rows.
        ranks: those that still have to do their half.
    """

    rows: dict[OffloadKey, int]
    ranks: list[int] = field(default_factory=lambda: list(range(_NUM_RANKS)))


class ManagerModel(RuleBasedStateMachine):
    """The manager, its tiers and the model; nothing happens to them yet.

    Attributes:
        policies: the eviction policies of the primary, names or classes, one of which each history uses.
    """

    policies: ClassVar[tuple[str | type[EvictionPolicy], ...]] = ("lru", "arc", "arc_paper")

    def make_tier(self, context: TierContext) -> Tier:
        """Make the tier to be played with as the last one. Without this method overridden there is none."""
        raise NotImplementedError

    def check_tier(self, content: set[OffloadKey]) -> None:
        """Compare what the events say that the own tier holds with what it does hold."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        def choose(*values: T) -> T:
            return data.draw(st.sampled_from(values))

        self.undo = ExitStack()
        self.now = 0.0
        self.rows = PlainRows(_NUM_ROWS, _ROW_BYTES)
        self.scripted = [ScriptedTier(name, self.rows, enable_events=True) for name in "abc"]
        hedge_quantile = choose(None, 0.9)
        for tier in self.scripted:
            tier.breaker = BreakerConfig() if choose(True, False) else BreakerConfig(window=10_000, min_failures=10_000)
            tier.limits = LimitsConfig(store_share=choose(0.25, 1.0), hedge_quantile=hedge_quantile)
        self.worker = self._start_worker()
        self.content: dict[str, set[OffloadKey]] = {name: set() for name in ("cpu", "a", "b", "c", "own")}
        own: list[SecondaryTierManager] = [] if self.worker is None else [self.worker]
        policy = _policy_class(choose(*self.policies))
        self.primary = CPUPrimaryTierOffloadingManager(_NUM_ROWS, policy, True, mmap_region=self.rows)
        self.manager = TieringOffloadingManager(
            self.primary,
            [*self.scripted, *own],
            row_bytes=_ROW_BYTES,
            promotion_limit=choose(0.25, 1.0),
            hold_limit=choose(0.0, 0.5, 1.0),
            hold_seconds=10.0,
            clock=lambda: self.now,
        )
        for attached in self.manager._tiers:
            # As if loads had ended at once before: what is open when time goes on is slow, and begun again elsewhere.
            attached._loads._seconds.extend([0.0] * _NUM_QUICK_LOADS)
        self.promised: set[OffloadKey] = set()
        self.finished: dict[str, set[str]] = {tier.name: set() for tier in self.scripted}
        self.stores: list[OpenCopy] = []
        self.loads: list[OpenCopy] = []
        self._begin_with(choose("nothing", "full rows", "full rows", "full tiers", "full tiers"))

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def events_tell_the_content(self) -> None:
        self._settle()
        polls = not self.manager._polled
        self.take_events()
        index, ref_cnt = self.primary.rows.index, self.primary.rows.table.ref_cnt
        assert self.content["cpu"] == {one for one, row in index.items() if ref_cnt[row] != WRITING}
        for tier in self.scripted:
            assert self.content[tier.name] == tier.objects
        if polls:  # a tier with a thread is heard of once per step
            self.check_tier(self.content["own"])

    @invariant()
    def what_was_ready_stays_until_the_step_ends(self) -> None:
        assert self.promised <= self.content["cpu"]

    @invariant()
    def no_tier_hears_of_a_request_that_has_finished(self) -> None:
        for tier in self.scripted:
            finished = self.finished[tier.name]
            for call in tier.calls:
                if call.method == "on_request_finished":
                    finished.add(call.req_id)
                elif call.method == "lookup":
                    finished.discard(call.req_id)  # a new life
                elif call.method == "submit_load" and call.req_id:
                    assert call.req_id not in finished, f"tier {tier.name} is to load for {call.req_id}"
            tier.calls.clear()

    @invariant()
    def every_row_is_accounted_for(self) -> None:
        rows, ref_cnt = self.primary.rows, self.primary.rows.table.ref_cnt
        assert len(set(rows.index.values())) == len(rows.index), "a row with two keys"
        free = set(rows._free)
        assert len(free) == rows.num_free
        assert free.isdisjoint(rows.index.values())
        assert not any(ref_cnt[row] for row in free)
        orphaned = set(range(_NUM_ROWS)) - free - set(rows.index.values())
        assert all(ref_cnt[row] for row in orphaned), "a row that nobody has"
        reading = sum(len(job.rows) for tier in self.manager._tiers for job in tier._stores)
        held = self.manager._lookups.num_held
        loading = sum(len(copy.rows) for copy in self.loads)
        assert sum(count for count in ref_cnt if count > 0) == loading + reading + held
        storing = sum(len(copy.rows) for copy in self.stores)
        assert ref_cnt.count(WRITING) == storing + self.manager._promotion.num_rows

    @invariant()
    def readable_rows_have_the_right_bytes(self) -> None:
        index, array = self.primary.rows.index, self.rows.array
        for chunk in self.content["cpu"]:
            assert array[index[chunk]].tobytes() == _BYTES[chunk]
        for tier in self.scripted:
            for chunk, stored in tier.stored_bytes.items():
                assert stored == _BYTES[chunk], f"tier {tier.name} was given the bytes of something else"

    def teardown(self) -> None:
        """Let everything end; then nothing may be left."""
        if not hasattr(self, "loads"):
            return
        with self.undo:
            for copy in self.stores:
                for rank in copy.ranks:
                    self.write_half(copy, rank)
                self.manager.complete_store(copy.rows)
            for copy in self.loads:
                for rank in copy.ranks:
                    self.read_half(copy, rank)
                self.manager.complete_load(copy.rows)
            for request in REQUESTS:
                self.manager.on_request_finished(request)
            for tier in self.scripted:
                tier.finishes_itself = True
            drain(self.manager, timeout_seconds=1.0)
            check_quiescent(self.manager, _NUM_ROWS, rows=self.rows, keys=CHUNKS)

    def _begin_with(self, state: str) -> None:
        """Have as many chunks as there are rows, in rows and tiers, or in tiers only."""
        if state == "nothing":
            return
        chunks = CHUNKS[:_NUM_ROWS]
        for chunk in chunks:
            store = self.manager.prepare_store([chunk], ReqContext())
            assert store is not None
            copy = OpenCopy({chunk: store.store_spec.block_ids.tolist()[0]})
            for rank in copy.ranks:
                self.write_half(copy, rank)
            self.manager.complete_store([chunk])
            for tier in self.scripted:
                tier.finish_all()
            self.manager.on_schedule_end()
        if state == "full tiers":
            self.manager.reset_cache()

    def _start_worker(self) -> TierWorker | None:
        if type(self).make_tier is ManagerModel.make_tier:
            return None
        self.undo.enter_context(ResourceWatch())
        self.loop = JobLoop()
        worker = TierWorker(
            self.make_tier,
            self.loop,
            self.rows.row_views,
            name="own",
            row_bytes=_ROW_BYTES,
            namespace=Namespace("model", row_bytes=_ROW_BYTES),
            enable_events=True,
        )
        self.undo.callback(worker.shutdown)
        return worker

    def _settle(self) -> None:
        """Let the own tier end what it was given, so that a history always goes the same way."""
        if self.worker is not None:
            while self.worker._inbox or self.worker._tasks:
                self.loop.wait_for(asyncio.sleep(0))

    def write_half(self, copy: OpenCopy, rank: int) -> None:
        half = slice(rank * _HALF_BYTES, (rank + 1) * _HALF_BYTES)
        for chunk, row in copy.rows.items():
            self.rows.array[row, half] = _PATTERNS[chunk][half]

    def read_half(self, copy: OpenCopy, rank: int) -> None:
        half = slice(rank * _HALF_BYTES, (rank + 1) * _HALF_BYTES)
        for chunk, row in copy.rows.items():
            found = self.rows.array[row, half].tobytes()
            assert found == _BYTES[chunk][half], "the row was given to somebody else during the load"

    def take_events(self) -> None:
        for event in self.manager.take_events():
            held = self.content[event.tier]
            if event.removed:
                assert held.issuperset(event.keys)
                held.difference_update(event.keys)
            else:
                assert held.isdisjoint(event.keys)
                held.update(event.keys)


@cache
def _policy_class(policy: str | type[EvictionPolicy]) -> type[EvictionPolicy]:
    return resolve_policy(policy) if isinstance(policy, str) else policy
