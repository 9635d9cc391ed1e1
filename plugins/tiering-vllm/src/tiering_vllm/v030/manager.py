"""vLLM's `OffloadingManager` over our tiering manager. Scheduler thread only; no step that computes waits for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TierFilter,
)

from tiering.manager import TieringOffloadingManager
from tiering.offloading_manager import LookupStatus
from tiering.request import ReqContext as TieringReqContext
from tiering_vllm.idle_engine import IdleEngine
from tiering_vllm.metrics import MetricKind, StatsDelta
from tiering_vllm.v030.rows_spec import RowsLoadStoreSpec

if TYPE_CHECKING:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

__all__ = ["TieringManagerAdapter"]

_RESULTS = {
    LookupStatus.READY: LookupResult.HIT,
    LookupStatus.PENDING: LookupResult.HIT_PENDING,
    LookupStatus.UNKNOWN: LookupResult.RETRY,
    LookupStatus.ABSENT: LookupResult.MISS,
}

_LOCALITIES = {"disk": Locality.LOCAL, "s3": Locality.REMOTE, "fsspec": Locality.REMOTE}
"""Per tier type; of others vLLM does not learn where they are."""

_LOAD_TIERS = "kv_load_tiers"


class TieringManagerAdapter(OffloadingManager):
    """Translates each call; decides nothing."""

    def __init__(self, manager: TieringOffloadingManager, tier_types: Mapping[str, str]) -> None:
        """Stand in front of ``manager``.

        Args:
            manager: is shut down with this.
            tier_types: of the secondary tiers, by name, in the order of the configuration.
        """
        self.tiering = manager
        self._localities = {name: _LOCALITIES.get(tier_type) for name, tier_type in tier_types.items()}
        self._num_rows = manager.primary_tier.rows.table.num_rows
        self._contexts: dict[str, TieringReqContext] = {}
        self._delta = StatsDelta()
        self._idle_engine = IdleEngine()

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        self.tiering.on_new_request(self._context(req_context))
        return RequestOffloadingContext()

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        return _RESULTS[self.tiering.status(key, self._context(req_context))]

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource  # noqa: PLC0415 - asked for since 0.32 only

        source = self.tiering.get_load_source(key, self._context(req_context))
        if source not in self._localities:
            return CacheHitSource.HOST
        # vLLM has no name for a remote store but this one.
        is_local = self._localities[source] is Locality.LOCAL
        return CacheHitSource.DISK if is_local else CacheHitSource.EXTERNAL_UNSPECIFIED

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> RowsLoadStoreSpec:
        return RowsLoadStoreSpec(self.tiering.prepare_load(keys, self._context(req_context)).block_ids)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.tiering.complete_load(keys)

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        store = self.tiering.prepare_store(self._as_many_as_fit(keys, req_context), self._context(req_context))
        if store is None:
            return None
        rows = RowsLoadStoreSpec(store.store_spec.block_ids)
        return PrepareStoreOutput(store.keys_to_store, rows, store.evicted_keys)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        self.tiering.complete_store(keys, success)

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        self.tiering.touch(keys)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.tiering.on_request_finished(self._context(req_context))
        self._contexts.pop(req_context.req_id, None)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self.tiering.on_schedule_end()
        self._idle_engine.end_step(tiers_work=self.tiering.has_pending_work())

    def has_pending_work(self) -> bool:
        return self.tiering.has_pending_work()

    def reset_cache(self) -> None:
        self.tiering.reset_cache()

    def take_events(self) -> Iterable[OffloadingEvent]:
        for event in self.tiering.take_events():
            is_secondary = event.tier in self._localities
            yield OffloadingEvent(
                keys=list(event.keys),
                medium=Medium(event.medium),
                removed=event.removed,
                locality=self._localities[event.tier] if is_secondary else Locality.LOCAL,
                ownership=event.tier if is_secondary else None,
            )

    def get_stats(self) -> OffloadingConnectorStats | None:
        stats = OffloadingConnectorStats()
        for seen in self._delta.observe(self.tiering.get_stats()):
            if seen.metric.kind is MetricKind.COUNTER:
                stats.increase_counter(seen.metric.name, seen.value, seen.labels)
            else:
                stats.set_gauge(seen.metric.name, seen.value, seen.labels)
        return None if stats.is_empty() else stats

    def shutdown(self) -> None:
        self.tiering.shutdown()

    def _context(self, req_context: ReqContext) -> TieringReqContext:
        context = self._contexts.get(req_context.req_id)
        if context is None:
            params = req_context.kv_transfer_params
            if params is not None and params.get(_LOAD_TIERS) is not None:
                params = {**params, _LOAD_TIERS: self._load_tiers(params[_LOAD_TIERS], req_context.load_tier_filter)}
            context = self._contexts[req_context.req_id] = TieringReqContext(req_context.req_id, params)
        return context

    def _load_tiers(self, wanted: object, tier_filter: TierFilter) -> list[str]:
        """Name the tiers of a request: by their names or types, as we do, or by medium and locality, as vLLM does."""
        tiers = [item for item in wanted if isinstance(item, str)] if isinstance(wanted, list) else []
        # vLLM reads what it does not understand as no restriction at all.
        if tier_filter is not TierFilter.ALL:
            tiers += [name for name, place in self._localities.items() if tier_filter.allows(Medium.STORAGE, place)]
        return tiers

    def _as_many_as_fit(self, keys: Collection[OffloadKey], req_context: ReqContext) -> Collection[OffloadKey]:
        """Return the head of a prefix that is longer than all rows together: it would be refused for ever."""
        if len(keys) <= self._num_rows:
            return keys
        position = getattr(req_context, "get_offload_key_position", lambda key: None)
        return sorted(keys, key=lambda key: position(key) or 0)[: self._num_rows]
