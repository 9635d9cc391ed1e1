"""The tiering manager: one primary tier of rows, any number of secondary tiers below it. Read this file first.

load      = pin, copy, unpin                 (`prepare_load`, the engine's workers, `complete_load`)
store     = reserve, copy, commit            (`prepare_store`, the engine's workers, `complete_store`)
cascade   = pin, tier.store, unpin           (`tiering.cascade`)
promotion = reserve, tier.load, commit       (`tiering.promotion`)
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tiering.attached_tier import AttachedTier
from tiering.cascade import Cascade
from tiering.events import OffloadingEvent
from tiering.keys import OffloadKey
from tiering.lookups import Lookups
from tiering.offloading_manager import LookupStatus, OffloadingManager, PrefixLookup
from tiering.primary import CPUOffloadingManager
from tiering.promotion import Promotion
from tiering.request import ReqContext
from tiering.secondary_tier import SecondaryTierManager
from tiering.transfer_specs import CPULoadStoreSpec, PrepareStoreOutput

__all__ = ["TieringOffloadingManager"]

logger = logging.getLogger(__name__)


class TieringOffloadingManager(OffloadingManager):
    """Looks a key up primary first and then tier by tier, stores to all, promotes on a hit below (seed 004).

    Attributes:
        primary_tier: the rows.
    """

    def __init__(
        self,
        primary_tier: CPUOffloadingManager,
        secondary_tiers: Sequence[SecondaryTierManager] = (),
        *,
        row_bytes: int = 0,
        promotion_limit: float = 0.5,
        hold_limit: float = 0.5,
        hold_seconds: float = 30.0,
        refill_faster_tiers: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join the tiers, which are open already and are closed by `shutdown`.

        Args:
            primary_tier: the rows.
            secondary_tiers: in the order in which they are asked.
            row_bytes: size of a row, for the counters.
            promotion_limit: share of the rows that promotions may hold, so that they never starve stores.
            hold_limit: share of the rows that may stay pinned for requests that wait.
            hold_seconds: how long they stay pinned for a request that does not come back.
            refill_faster_tiers: whether a chunk promoted from one tier is stored in those asked before it, too.
            clock: monotonic seconds.
        """
        num_rows = primary_tier.rows.table.num_rows
        job_ids = itertools.count()
        self.primary_tier = primary_tier
        self._tiers = [AttachedTier(tier, row_bytes, clock, num_rows=num_rows) for tier in secondary_tiers]
        self._cascade = Cascade(primary_tier.rows, self._tiers, job_ids)
        self._promotion = Promotion(primary_tier.rows, job_ids, max(1, int(num_rows * promotion_limit)))
        self._lookups = Lookups(
            primary_tier,
            self._tiers,
            self._promotion,
            max_held=int(num_rows * hold_limit),
            hold_seconds=hold_seconds,
            clock=clock,
        )
        self._refill_faster_tiers = refill_faster_tiers
        self._polled = False
        self._is_shut_down = False

    def status(self, key: OffloadKey, req_context: ReqContext) -> LookupStatus:
        self._poll()
        return self._lookups.status(key, req_context)

    def lookup_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        self._poll()
        return self._lookups.lookup_prefix(keys, req_context)

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> str:
        """Name the tier that the chunk came from for this request; the primary is ``cpu``."""
        return self._lookups.source(key, req_context) or "cpu"

    def prepare_load(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        load = self.primary_tier.prepare_load(keys, req_context)
        if load.block_ids.size:
            self._lookups.release(req_context.req_id)
        return load

    def complete_load(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        self.primary_tier.complete_load(keys, req_context)

    def prepare_store(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        self._poll()
        keys = list(keys)
        if keys:
            self._lookups.release(req_context.req_id)
        store = self.primary_tier.prepare_store(keys, req_context)
        if store is not None:
            self._lookups.stored(store.keys_to_store, req_context)
            self._cascade.restrict(store.store_spec.block_ids.tolist(), req_context)
        return store

    def complete_store(
        self, keys: Iterable[OffloadKey], success: bool = True, req_context: ReqContext | None = None
    ) -> None:
        self._cascade.broadcast(self.primary_tier.end_stores(keys, success=success))

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        keys = list(dict.fromkeys(keys))
        self.primary_tier.touch(keys)
        self._touch_tiers(keys)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._promotion.drop(req_context.req_id)
        self._lookups.finish(req_context)
        self._touch_tiers(self.primary_tier.finish_request(req_context))
        for tier in self._tiers:
            tier.on_request_finished(req_context)

    def on_schedule_end(self) -> None:
        self._poll()
        for tier, refused in self._promotion.submit_queued():
            self._lookups.promoted(tier, refused, [False] * len(refused.keys))
        for tier in self._tiers:
            tier.on_schedule_end()
        self._lookups.end_step()
        self.primary_tier.on_schedule_end()
        self._polled = False

    def has_pending_work(self) -> bool:
        return bool(self._promotion.num_queued) or any(tier.has_pending_work() for tier in self._tiers)

    def reset_cache(self) -> None:
        self._promotion.drop_all()
        self._lookups.reset()
        self.primary_tier.reset_cache()

    def take_events(self) -> list[OffloadingEvent]:
        self._poll()
        events = list(self.primary_tier.take_events())
        for tier in self._tiers:
            events += tier.take_events()
        return events

    def get_stats(self) -> Mapping[str, Any]:
        """Counters and gauges of the primary, and under ``tiers`` those of each secondary tier (`TierStats`)."""
        return {
            **self.primary_tier.get_stats(),
            "rows_promoting": self._promotion.num_rows,
            "rows_held": self._lookups.num_held,
            "promotions_refused": self._promotion.num_refused,
            "requests_remembered": self._lookups.num_requests,
            "tiers": {tier.name: tier.get_stats() for tier in self._tiers},
        }

    def shutdown(self) -> None:
        """Close every tier, also after one has failed to, then the primary. Later calls do nothing.

        Raises:
            Exception: what the first failing tier raised. Something of it may still use rows, so their memory is kept
                until the process ends.
        """
        if self._is_shut_down:
            return
        self._is_shut_down = True
        failures = [error for tier in self._tiers if (error := tier.shutdown()) is not None]
        if failures:
            logger.error("the rows' memory is kept, because a tier could not be closed")
            raise failures[0]
        self.primary_tier.shutdown()

    def _poll(self) -> None:
        """Take up what the tiers have finished, once per step and before anything is decided in it."""
        if self._polled:
            return
        self._polled = True
        for tier in self._tiers:
            finished = tier.poll()
            for job in finished.stores:
                self._cascade.finish(job)
            for job, succeeded in finished.loads:
                rows = self._promotion.finish(job, succeeded)
                self._lookups.promoted(tier, job, succeeded, rows)
                if self._refill_faster_tiers:
                    self._cascade.refill(self.primary_tier.rows.keys_of(rows), rows, tier)
            for job in finished.overdue_loads:
                self._promotion.expire(job)
                self._lookups.promoted(tier, job, [False] * len(job.keys))
            for job in finished.slow_loads:
                self._lookups.hedge(tier, job)

    def _touch_tiers(self, keys: Sequence[OffloadKey]) -> None:
        if keys:
            last_first = tuple(reversed(keys))
            for tier in self._tiers:
                tier.touch(last_first)
