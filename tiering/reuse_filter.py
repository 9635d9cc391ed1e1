"""A filter in front of a manager: only chunks seen often enough are stored (seed, chapter 3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from tiering.events import OffloadingEvent
from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus, OffloadingManager, PrefixLookup
from tiering.request import ReqContext
from tiering.transfer_specs import CPULoadStoreSpec, PrepareStoreOutput

__all__ = ["FilterReusedOffloadingManager"]


class _Sightings:
    """How often one chunk was looked up and offered, each request counted once."""

    __slots__ = ("last_lookup_by", "last_offer_by", "lookups", "offers")

    def __init__(self) -> None:
        self.lookups = 0
        self.offers = 0
        self.last_lookup_by = ""
        self.last_offer_by = ""


class FilterReusedOffloadingManager(OffloadingManager):
    """Stores a chunk only from its ``store_threshold``-th sighting on.

    A sighting is a lookup or an offer to store. The seed counts lookups alone, but those stop at the first miss, so
    that later chunks of a prompt would never qualify; and a request that waits looks up in every step, so a request
    counts once.

    Attributes:
        num_skipped: offers that were filtered out.
    """

    def __init__(self, backing: OffloadingManager, store_threshold: int = 2, max_tracker_size: int = 64_000) -> None:
        """Filter what goes to ``backing``.

        Args:
            backing: the manager that stores.
            store_threshold: sightings that a chunk needs.
            max_tracker_size: chunks whose sightings are remembered; the one not seen for longest is forgotten.

        Raises:
            ValueError: ``store_threshold`` is below 2, which would filter nothing, or ``max_tracker_size`` below 1.
        """
        if store_threshold < 2:
            raise ValueError(f"store_threshold must be at least 2, not {store_threshold}")
        if max_tracker_size < 1:
            raise ValueError(f"max_tracker_size must be at least 1, not {max_tracker_size}")
        self.store_threshold = store_threshold
        self.max_tracker_size = max_tracker_size
        self.num_skipped = 0
        self._backing = backing
        self._sightings: OrderedDict[OffloadKey, _Sightings] = OrderedDict()

    @property
    def num_tracked(self) -> int:
        """Chunks whose sightings are remembered now."""
        return len(self._sightings)

    def status(self, key: OffloadKey, req_context: ReqContext) -> LookupStatus:
        self._note_lookup(key, req_context)
        return self._backing.status(key, req_context)

    def lookup_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        keys = list(keys)
        found = self._backing.lookup_prefix(keys, req_context)
        for key in keys[: found.num_ready + 1]:
            self._note_lookup(key, req_context)
        return found

    def prepare_store(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        keys = list(dict.fromkeys(keys))
        eligible = [
            key
            for key in keys
            if self._note_offer(key, req_context)
            or self._backing.status(key, req_context) is not LookupStatus.ABSENT  # already stored: a use, not an offer
        ]
        self.num_skipped += len(keys) - len(eligible)
        return self._backing.prepare_store(eligible, req_context)

    def prepare_load(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        return self._backing.prepare_load(keys, req_context)

    def complete_load(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        self._backing.complete_load(keys, req_context)

    def complete_store(
        self, keys: Iterable[OffloadKey], success: bool = True, req_context: ReqContext | None = None
    ) -> None:
        self._backing.complete_store(keys, success, req_context)

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self._backing.touch(keys)

    def on_new_request(self, req_context: ReqContext) -> None:
        self._backing.on_new_request(req_context)

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._backing.on_request_finished(req_context)

    def on_schedule_end(self) -> None:
        self._backing.on_schedule_end()

    def has_pending_work(self) -> bool:
        return self._backing.has_pending_work()

    def reset_cache(self) -> None:
        self._backing.reset_cache()

    def take_events(self) -> Iterable[OffloadingEvent]:
        return self._backing.take_events()

    def get_stats(self) -> Mapping[str, Any]:
        return {**self._backing.get_stats(), "stores_skipped": self.num_skipped, "chunks_tracked": self.num_tracked}

    def shutdown(self) -> None:
        self._backing.shutdown()

    def _note_lookup(self, key: OffloadKey, req_context: ReqContext) -> None:
        seen = self._seen(key)
        if not req_context.req_id or seen.last_lookup_by != req_context.req_id:
            seen.lookups += 1
            seen.last_lookup_by = req_context.req_id

    def _note_offer(self, key: OffloadKey, req_context: ReqContext) -> bool:
        seen = self._seen(key)
        if not req_context.req_id or seen.last_offer_by != req_context.req_id:
            seen.offers += 1
            seen.last_offer_by = req_context.req_id
        return max(seen.lookups, seen.offers) >= self.store_threshold

    def _seen(self, key: OffloadKey) -> _Sightings:
        seen = self._sightings.get(key)
        if seen is None:
            if len(self._sightings) >= self.max_tracker_size:
                self._sightings.popitem(last=False)
            seen = self._sightings[key] = _Sightings()
        else:
            self._sightings.move_to_end(key)
        return seen
