"""The primary tier: chunks in rows of CPU memory, and the engine's face of them (seed, chapter 4)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Protocol

from tiering.errors import KeysNotReadyError
from tiering.events import EventLog, OffloadingEvent
from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus, OffloadingManager, PrefixLookup
from tiering.policies.policy import EvictionPolicy
from tiering.request import ReqContext
from tiering.row_table import WRITING, RowTable
from tiering.rows import Rows
from tiering.transfer_specs import CPULoadStoreSpec, PrepareStoreOutput

__all__ = ["CPUOffloadingManager", "CPUPrimaryTierOffloadingManager", "RowMemory"]


class CPUOffloadingManager(OffloadingManager):
    """Chunks in ``num_blocks`` rows, evicted by policy.

    Attributes:
        rows: the rows and the verbs on them, for the flows that join this tier to others.
        num_refused: stores that found no room.
        num_unexpected: completions of loads and stores that nobody had open.
    """

    def __init__(
        self, num_blocks: int, cache_policy: str | type[EvictionPolicy] = "lru", enable_events: bool = False
    ) -> None:
        """Start empty.

        Args:
            num_blocks: number of rows.
            cache_policy: the name of an installed policy, or its class.
            enable_events: whether somebody will `take_events`.

        Raises:
            ValueError: ``num_blocks`` is less than 1.
            PluginError: no such policy.
        """
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {num_blocks}")
        table = RowTable(num_blocks)
        self.medium = CPULoadStoreSpec.medium()
        self._events = EventLog(self.medium, "cpu") if enable_events else None
        self.rows = Rows(table, _policy_class(cache_policy)(table), self._events)
        self.num_refused = 0
        self.num_unexpected = 0
        self._storing: dict[OffloadKey, int] = {}
        self._num_loads = [0] * num_blocks
        # Copies that were under way at a reset: per key the rows, oldest first; copies of one key end in that order.
        self._orphaned_stores: defaultdict[OffloadKey, deque[int]] = defaultdict(deque)
        self._orphaned_loads: defaultdict[OffloadKey, deque[int]] = defaultdict(deque)
        # Per request, its chunks in prefix order, and whether they were there before it came.
        self._chunks: dict[str, dict[OffloadKey, bool]] = {}

    def status(self, key: OffloadKey, req_context: ReqContext) -> LookupStatus:
        row = self.rows.index.get(key)
        if row is None:
            return LookupStatus.ABSENT
        if self.rows.table.ref_cnt[row] == WRITING:
            return LookupStatus.PENDING
        self.rows.lease(row)
        return LookupStatus.READY

    def lookup_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        keys = list(keys)
        num_ready = len(self.lease_ready_prefix(keys))
        if num_ready < len(keys) and keys[num_ready] in self.rows.index:
            return PrefixLookup(num_ready, LookupStatus.PENDING)
        return PrefixLookup(num_ready, LookupStatus.ABSENT)

    def lease_ready_prefix(self, keys: Sequence[OffloadKey]) -> list[int]:
        """Return the rows of the leading READY keys, leased until the end of the step."""
        table = self.rows.table
        ref_cnt, leases, step = table.ref_cnt, table.leases, table.step
        ready: list[int] = []
        for row in map(self.rows.index.get, keys):
            if row is None or ref_cnt[row] == WRITING:
                break
            leases[row] = step
            ready.append(row)
        return ready

    def prepare_load(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        keys = list(dict.fromkeys(keys))
        ref_cnt = self.rows.table.ref_cnt
        rows = [row for row in map(self.rows.index.get, keys) if row is not None and ref_cnt[row] != WRITING]
        if len(rows) < len(keys):
            index = self.rows.index
            raise KeysNotReadyError([k for k in keys if k not in index or ref_cnt[index[k]] == WRITING])
        self.rows.pin(rows)
        for row in rows:
            self._num_loads[row] += 1
        self.rows.policy.refresh(reversed(rows))
        self._record(dict.fromkeys(keys, True), req_context)
        return CPULoadStoreSpec(rows)

    def complete_load(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        for key in dict.fromkeys(keys):
            if key in self._orphaned_loads:
                row: int | None = _pop_oldest(self._orphaned_loads, key)
            else:
                row = self.rows.index.get(key)
            if row is None or not self._num_loads[row]:
                self.num_unexpected += 1
                continue
            self._num_loads[row] -= 1
            self.rows.unpin((row,))

    def prepare_store(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        keys = list(dict.fromkeys(keys))
        index = self.rows.index
        missing = []
        for key in keys:
            row = index.get(key)
            if row is None:
                missing.append(key)
            else:
                self.rows.lease(row)
        reservation = self.rows.reserve(missing)
        if reservation is None:
            self.num_refused += 1
            return None
        self._storing.update(zip(missing, reservation.rows, strict=True))
        self._record(dict.fromkeys(keys, True) | dict.fromkeys(missing, False), req_context)
        return PrepareStoreOutput(missing, CPULoadStoreSpec(reservation.rows), reservation.evicted_keys)

    def complete_store(
        self, keys: Iterable[OffloadKey], success: bool = True, req_context: ReqContext | None = None
    ) -> None:
        self.end_stores(keys, success=success)

    def end_stores(self, keys: Iterable[OffloadKey], *, success: bool) -> list[OffloadKey]:
        """`complete_store`, returning the keys that have become readable by it."""
        rows = []
        for key in dict.fromkeys(keys):
            if key in self._orphaned_stores:
                rows.append(_pop_oldest(self._orphaned_stores, key))
            elif key in self._storing:
                rows.append(self._storing.pop(key))
            else:
                self.num_unexpected += 1
        if success:
            return self.rows.commit(rows)
        self.rows.abort(rows)
        return []

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        rows = [row for row in map(self.rows.index.get, dict.fromkeys(keys)) if row is not None]
        self.rows.policy.touch(reversed(rows))

    def on_request_finished(self, req_context: ReqContext) -> None:
        self.finish_request(req_context)

    def finish_request(self, req_context: ReqContext) -> list[OffloadKey]:
        """`on_request_finished`, returning the request's chunks in prefix order.

        Only now does a reused chunk count as used again: once per request, and after the request's own stores have
        chosen their victims.
        """
        chunks = self._chunks.pop(req_context.req_id, {})
        last_first = reversed(chunks.items())
        for reused, run in groupby(last_first, key=itemgetter(1)):
            rows = [row for row in map(self.rows.index.get, map(itemgetter(0), run)) if row is not None]
            (self.rows.policy.touch if reused else self.rows.policy.refresh)(rows)
        return list(chunks)

    def on_schedule_end(self) -> None:
        self.rows.end_step()

    def reset_cache(self) -> None:
        index = self.rows.index
        for key, row in self._storing.items():
            self._orphaned_stores[key].append(row)
        self._storing.clear()
        for key, row in index.items():
            if self._num_loads[row]:
                self._orphaned_loads[key].extend([row] * self._num_loads[row])
        self.rows.clear()

    def take_events(self) -> Sequence[OffloadingEvent]:
        return self._events.take() if self._events is not None else ()

    def get_stats(self) -> Mapping[str, Any]:
        num_rows = self.rows.table.num_rows
        return {
            "rows": num_rows,
            "rows_free": self.rows.num_free,
            "chunks": len(self.rows.index),
            "stores_open": len(self._storing) + sum(map(len, self._orphaned_stores.values())),
            "evictions": self.rows.num_evictions,
            "stores_refused": self.num_refused,
            "completions_unexpected": self.num_unexpected,
            "requests": len(self._chunks),
        }

    def _record(self, were_there: dict[OffloadKey, bool], req_context: ReqContext) -> None:
        if were_there and req_context.req_id:
            chunks = self._chunks.setdefault(req_context.req_id, were_there)
            if chunks is not were_there:
                for key, was_there in were_there.items():
                    chunks.setdefault(key, was_there)


class RowMemory(Protocol):
    """The memory that the rows lie in; `tiering.region.SharedOffloadRegion` is meant."""

    def create_kv_memoryview(self) -> memoryview:
        """All rows, shape ``(num_rows, row_bytes)``, without a copy."""
        ...

    def cleanup(self) -> None:
        """Give the memory back."""
        ...


class CPUPrimaryTierOffloadingManager(CPUOffloadingManager):
    """The primary tier over a shared region: secondary tiers read and write its rows in place."""

    def __init__(
        self,
        num_blocks: int,
        cache_policy: str | type[EvictionPolicy] = "lru",
        enable_events: bool = False,
        *,
        mmap_region: RowMemory,
    ) -> None:
        """See `CPUOffloadingManager`.

        Args:
            mmap_region: the rows' memory; `shutdown` gives it back.

        Raises:
            ValueError: the region has not ``num_blocks`` rows.
        """
        super().__init__(num_blocks, cache_policy, enable_events)
        self._mmap_region = mmap_region
        shape = mmap_region.create_kv_memoryview().shape
        if shape is None or shape[0] != num_blocks:
            raise ValueError(f"the region has shape {shape}, not ({num_blocks}, row_bytes)")

    def get_kv_memoryview(self) -> memoryview:
        """All rows, shape ``(num_blocks, row_bytes)``, without a copy."""
        return self._mmap_region.create_kv_memoryview()

    def shutdown(self) -> None:
        """Give the region back. No tier may read or write a row any more."""
        self._mmap_region.cleanup()


def _policy_class(policy: str | type[EvictionPolicy]) -> type[EvictionPolicy]:
    if not isinstance(policy, str):
        return policy
    from tiering.registry import resolve_policy  # noqa: PLC0415  (the registry knows the policies' contract)

    return resolve_policy(policy)


def _pop_oldest(orphans: dict[OffloadKey, deque[int]], key: OffloadKey) -> int:
    rows = orphans[key]
    row = rows.popleft()
    if not rows:
        del orphans[key]
    return row
