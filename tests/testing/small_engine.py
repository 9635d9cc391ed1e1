"""A manager over one real tier on a loop of its own, and what an engine does with it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.testing import (
    Fault,
    FaultSchedule,
    FaultyTier,
    MemoryTier,
    MemoryTierConfig,
    PlainRows,
    check_quiescent,
    drain,
    fill_row,
    row_matches,
)
from tiering.tier import BreakerConfig, LimitsConfig, Tier, TierContext

ROW_BYTES = 4096
NUM_ROWS = 6
PATIENT = LimitsConfig(lookup_timeout=5.0, load_timeout=5.0, store_timeout=5.0, store_share=1.0)


def keys(*numbers: int) -> list[OffloadKey]:
    return [make_offload_key(number.to_bytes(32, "big"), 0) for number in numbers]


class Engine:
    """Compares the bytes of all that it loads.

    Attributes:
        tier: the tier, inside a `FaultyTier` whose faults are off at first.
        now: the manager's time, which moves when a test says so.
    """

    def __init__(
        self, schedule: FaultSchedule | None = None, inner: Callable[[TierContext], Tier] | None = None
    ) -> None:
        self.now = 0.0
        self.rows = PlainRows(NUM_ROWS, ROW_BYTES)

        def make_tier(context: TierContext) -> FaultyTier:
            tier = inner(context) if inner else MemoryTier(MemoryTierConfig(), context)
            self.tier = FaultyTier(tier, schedule or FaultSchedule(), is_on=False)
            return self.tier

        self.worker = TierWorker(
            make_tier,
            JobLoop(),
            self.rows.row_views,
            name="faulty",
            row_bytes=ROW_BYTES,
            namespace=Namespace("model", row_bytes=ROW_BYTES),
            enable_events=True,
            limits=PATIENT,
            breaker=BreakerConfig(window=10_000, min_failures=10_000),
        )
        primary = CPUPrimaryTierOffloadingManager(NUM_ROWS, mmap_region=self.rows)
        self.manager = TieringOffloadingManager(
            primary, [self.worker], row_bytes=ROW_BYTES, promotion_limit=1.0, clock=lambda: self.now
        )

    def store(self, *numbers: int) -> None:
        """Store chunks, unless rows that are stuck leave no room."""
        store = self.manager.prepare_store(keys(*numbers), ReqContext("storing"))
        if store is None:
            return
        for key, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            fill_row(self.rows.array[row], key)
        self.manager.complete_store(store.keys_to_store)
        self.manager.on_request_finished(ReqContext("storing"))

    def statuses(self, *numbers: int) -> list[LookupStatus]:
        """Ask until there is nothing to be waited for; compare the bytes of what is ready."""
        request = ReqContext("asking")
        numbers = tuple(dict.fromkeys(numbers))
        for _ in range(20):
            statuses = [self.manager.status(key, request) for key in keys(*numbers)]
            if not {LookupStatus.PENDING, LookupStatus.UNKNOWN} & set(statuses):
                break
            if self.every_call_ends:
                drain(self.manager)
            else:
                self.manager.on_schedule_end()
                while not self.tier.faults:
                    os.sched_yield()
                self.now += 6.0
        ready = [key for key, status in zip(keys(*numbers), statuses, strict=True) if status is LookupStatus.READY]
        for key, row in zip(ready, self.manager.prepare_load(ready, request).block_ids.tolist(), strict=True):
            assert row_matches(self.rows.array[row], key)
        self.manager.complete_load(ready)
        self.manager.on_request_finished(request)
        return statuses

    @property
    def every_call_ends(self) -> bool:
        """Whether every call ends by itself."""
        holds = self.tier.schedule.rates.keys() & {Fault.STUCK, Fault.LATE_WRITE}
        return not (holds and self.tier.is_on and math.isinf(self.tier.schedule.stuck_seconds))

    def close(self) -> None:
        self.tier.is_on = False
        self.tier.release()
        drain(self.manager)
        check_quiescent(self.manager, NUM_ROWS)
        self.manager.shutdown()
