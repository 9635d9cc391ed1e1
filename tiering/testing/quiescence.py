"""The check that finds leaks: is everything given back once everything has ended?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tiering.keys import OffloadKey, make_offload_key
from tiering.offloading_manager import LookupStatus, OffloadingManager
from tiering.request import ReqContext
from tiering.testing.patterns import row_matches
from tiering.testing.plain_rows import PlainRows

__all__ = ["NotQuiescentError", "check_quiescent"]

_EMPTY_STEPS = 3
_GAUGES = ("stores_open", "requests", "requests_remembered", "rows_promoting", "rows_held")
_FROM_NO_TIER: Mapping[str, Any] = {"kv_load_tiers": []}


class NotQuiescentError(AssertionError):
    """A manager at rest still holds something; the message lists all of it."""


def check_quiescent(
    manager: OffloadingManager, num_rows: int, *, rows: PlainRows | None = None, keys: Iterable[OffloadKey] = ()
) -> None:
    """Check that a manager whose requests, loads and stores have all ended holds nothing any more.

    Tiers with threads are to be waited for with `drain` before. After three empty steps: no pending work; all gauges of
    open things at zero; every row free or evictable, proved by reserving all of them at once for fresh keys; and, if
    ``rows`` are given, in the rows of those of ``keys`` that are READY their patterns. No tier is asked or written to.
    Afterwards the manager has no chunks in its rows.

    Args:
        manager: the manager; of one that filters what is stored, the one behind the filter.
        num_rows: how many rows it has.
        rows: their memory.
        keys: whose bytes to compare.

    Raises:
        NotQuiescentError: something is left.
    """
    for _ in range(_EMPTY_STEPS):
        manager.on_schedule_end()
    problems = list(_open_things(manager, num_rows))
    if rows is not None:
        problems += _wrong_bytes(manager, rows, keys)
    problems += _rows_not_to_be_had(manager, num_rows)
    if problems:
        raise NotQuiescentError("the manager is not at rest: " + "; ".join(problems))


def _open_things(manager: OffloadingManager, num_rows: int) -> Iterator[str]:
    if manager.has_pending_work():
        yield f"it has pending work after {_EMPTY_STEPS} empty steps"
    stats = manager.get_stats()
    for gauge in _GAUGES:
        if stats.get(gauge, 0):
            yield f"{gauge} is {stats[gauge]}"
    for name, tier in stats.get("tiers", {}).items():
        if tier["jobs_in_flight"]:
            yield f"tier {name} has {tier['jobs_in_flight']} jobs in flight"
    if stats["rows_free"] + stats["chunks"] != num_rows:
        yield f"{stats['rows_free']} free rows and {stats['chunks']} chunks do not make {num_rows} rows"


def _wrong_bytes(manager: OffloadingManager, rows: PlainRows, keys: Iterable[OffloadKey]) -> Iterator[str]:
    request = ReqContext("quiescence check", _FROM_NO_TIER)
    ready = [key for key in dict.fromkeys(keys) if manager.status(key, request) is LookupStatus.READY]
    load = manager.prepare_load(ready, request)
    for key, row in zip(ready, load.block_ids.tolist(), strict=True):
        if not row_matches(rows.array[row], key):
            yield f"row {row} does not hold the bytes of its key {key.hex()}"
    manager.complete_load(ready, request)
    manager.on_request_finished(request)
    manager.on_schedule_end()


def _rows_not_to_be_had(manager: OffloadingManager, num_rows: int) -> Iterator[str]:
    request = ReqContext("quiescence check", _FROM_NO_TIER)
    fresh = [_fresh_key(number) for number in range(num_rows)]
    store = manager.prepare_store(fresh, request)
    if store is None:
        yield f"{num_rows} fresh keys do not fit into {num_rows} rows"
    else:
        granted = store.store_spec.block_ids.tolist()
        if store.keys_to_store != fresh or sorted(granted) != list(range(num_rows)):
            yield f"{num_rows} fresh keys got the rows {sorted(granted)}"
        manager.complete_store(store.keys_to_store, success=False)
    manager.on_request_finished(request)
    manager.on_schedule_end()
    if (num_free := manager.get_stats()["rows_free"]) != num_rows and store is not None:
        yield f"{num_free} of {num_rows} rows are free after all chunks were evicted"


def _fresh_key(number: int) -> OffloadKey:
    return make_offload_key(hashlib.blake2b(b"quiescence %d" % number, digest_size=16).digest(), 0)
