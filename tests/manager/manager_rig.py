"""A manager over plain rows and scripted tiers, and what an engine does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus, PrefixLookup
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.secondary_tier import SecondaryTierManager
from tiering.testing import (
    MemoryTier,
    MemoryTierConfig,
    PlainRows,
    ScriptedTier,
    check_quiescent,
    fill_row,
    row_matches,
)
from tiering.tier import BreakerConfig, LimitsConfig, Tier, TierContext
from tiering.transfer_specs import PrepareStoreOutput

ROW_BYTES = 64

PATIENT = LimitsConfig(lookup_timeout=1e9, load_timeout=1e9, store_timeout=1e9, store_share=1.0)
NEVER_OPENS = BreakerConfig(window=400, min_failures=400, failure_ratio=1.0)

READY, PENDING, UNKNOWN, ABSENT = LookupStatus.READY, LookupStatus.PENDING, LookupStatus.UNKNOWN, LookupStatus.ABSENT

R1, R2, R3, R4 = (ReqContext(f"r{number}") for number in range(1, 5))


def key(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(number.to_bytes(8, "big"), group)


def keys(*numbers: int) -> list[OffloadKey]:
    return [key(number) for number in numbers]


class Rig:
    """Counts no rows itself: what it knows, it knows from the manager's answers and from the bytes.

    Attributes:
        now: the manager's time, which moves when a test says so.
    """

    def __init__(
        self,
        num_rows: int,
        *tier_names: str,
        policy: str = "lru",
        events: bool = False,
        more_tiers: Callable[[PlainRows], Sequence[SecondaryTierManager]] = lambda rows: (),
        limits: LimitsConfig | None = None,
        breaker: BreakerConfig | None = None,
        **options: float,
    ) -> None:
        self.now = 0.0
        self.num_rows = num_rows
        self.rows = PlainRows(num_rows, ROW_BYTES)
        self.tiers = [ScriptedTier(name, self.rows, enable_events=events) for name in tier_names]
        for tier in self.tiers:
            tier.limits, tier.breaker = PATIENT, NEVER_OPENS
        for tier in self.tiers:
            tier.limits, tier.breaker = limits or tier.limits, breaker or tier.breaker
        self.primary = CPUPrimaryTierOffloadingManager(num_rows, policy, events, mmap_region=self.rows)
        self.manager = TieringOffloadingManager(
            self.primary,
            [*self.tiers, *more_tiers(self.rows)],
            row_bytes=ROW_BYTES,
            clock=lambda: self.now,
            **options,
        )
        self.seen: dict[OffloadKey, None] = {}

    @property
    def tier(self) -> ScriptedTier:
        return self.tiers[0]

    def write(self, store: PrepareStoreOutput) -> None:
        """Do what a worker does for a store."""
        for stored, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            fill_row(self.rows.array[row], stored)
            self.seen[stored] = None

    def prepare(self, request: ReqContext, wanted: Iterable[OffloadKey]) -> PrepareStoreOutput:
        """Reserve rows that must be there to be had."""
        store = self.manager.prepare_store(wanted, request)
        assert store is not None
        return store

    def store(self, request: ReqContext, *wanted: OffloadKey) -> PrepareStoreOutput:
        """Store chunks that must find room, from beginning to end."""
        store = self.prepare(request, wanted)
        self.write(store)
        self.manager.complete_store(store.keys_to_store)
        return store

    def fill(self, *wanted: OffloadKey) -> None:
        """Have chunks in rows and tiers, idle and with no request left."""
        self.store(R4, *wanted)
        self.end_jobs()
        self.manager.on_request_finished(R4)
        self.step()

    def load(self, request: ReqContext, *wanted: OffloadKey) -> list[int]:
        """Load chunks that must be ready, comparing bytes; returns their rows."""
        load = self.manager.prepare_load(wanted, request)
        rows: list[int] = load.block_ids.tolist()
        for loaded, row in zip(dict.fromkeys(wanted), rows, strict=True):
            assert row_matches(self.rows.array[row], loaded), f"row {row} has not the bytes of {loaded.hex()}"
        self.manager.complete_load(wanted, request)
        return rows

    def statuses(self, request: ReqContext, *wanted: OffloadKey) -> list[LookupStatus]:
        self.seen.update(dict.fromkeys(wanted))
        return [self.manager.status(one, request) for one in wanted]

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.manager.on_schedule_end()

    def end_jobs(self, succeeded: bool = True) -> None:
        """Let all tiers end what they do, and the manager hear of it."""
        self.step()
        while any(tier.jobs for tier in self.tiers):
            for tier in self.tiers:
                tier.finish_all(succeeded)
            self.step()

    def wait(self, request: ReqContext, wanted: Sequence[OffloadKey], max_steps: int = 50) -> PrefixLookup:
        """Ask in every step, with tiers that answer at once, until there is nothing to wait for."""
        self.seen.update(dict.fromkeys(wanted))
        for _ in range(max_steps):
            found = self.manager.lookup_prefix(wanted, request)
            if not found.must_wait:
                return found
            self.step()
            for tier in self.tiers:
                tier.finish_all()
        raise AssertionError(f"{request.req_id} still waits after {max_steps} steps")

    def finish(self, *requests: ReqContext) -> None:
        for request in requests:
            self.manager.on_request_finished(request)

    def check(self) -> None:
        """The quiescence check; everything must have ended."""
        check_quiescent(self.manager, self.num_rows, rows=self.rows, keys=self.seen)

    def tier_stats(self, name: str) -> dict[str, float]:
        return dict(self.manager.get_stats()["tiers"][name])


@contextmanager
def worker_of(
    rows: PlainRows,
    make_tier: Callable[[TierContext], Tier] | None = None,
    *,
    name: str = "memory",
    events: bool = False,
) -> Iterator[TierWorker]:
    """A coroutine tier on a loop of its own."""
    worker = TierWorker(
        make_tier or (lambda context: MemoryTier(MemoryTierConfig(), context)),
        JobLoop(),
        rows.row_views,
        name=name,
        row_bytes=ROW_BYTES,
        namespace=Namespace("model", row_bytes=ROW_BYTES),
        enable_events=events,
        limits=PATIENT,
        breaker=NEVER_OPENS,
    )
    try:
        yield worker
    finally:
        worker.shutdown()
