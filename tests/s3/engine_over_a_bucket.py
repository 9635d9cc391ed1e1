"""An engine in this process: a manager over plain rows and an object tier, and an alarm for I/O on its thread."""

from __future__ import annotations

import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from object_harness import QUICK_RETRIES, Place, namespace

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import PrefixLookup
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.registry import resolve_tier
from tiering.replay.device import DeviceJobResult, DeviceTraffic
from tiering.replay.generator import generate_trace
from tiering.replay.report import ReplayReport
from tiering.replay.serving import serve_trace
from tiering.replay.trace import TraceRequest
from tiering.request import ReqContext
from tiering.testing import MemoryTier, MemoryTierConfig, PlainRows, drain, fill_row, row_matches
from tiering.tier import Tier, TierContext
from tiering.transfer_specs import CPULoadStoreSpec

sys.path.append(str(Path(__file__).parents[1] / "manager"))
from io_alarm import IOAlarm, io_alarm

DEADLINE_SECONDS = 30.0
SECONDS_BETWEEN_STEPS = 50e-6


class WatchedManager:
    """Passes calls on to a manager and notes what they do: all I/O, and the time they take.

    Attributes:
        alarm: what was seen.
        seconds: duration of each call.
    """

    def __init__(self, manager: TieringOffloadingManager, alarm: IOAlarm) -> None:
        self.alarm = alarm
        self.seconds: list[float] = []
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        return functools.partial(self._call, found) if callable(found) else found

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        with self.alarm.watch():
            result = function(*arguments, **named)
        self.seconds.append(time.perf_counter() - began)
        return result

    def check_that_nothing_blocked(self) -> None:
        assert self.alarm.seen == []
        p50, p99 = np.percentile(self.seconds, [50, 99]) * 1e6
        print(f"{len(self.seconds)} calls of the manager: p50 {p50:.0f} us, p99 {p99:.0f} us")


class RowDevice:
    """A device that computes a chunk by writing its pattern into the row, and compares every row that is loaded."""

    def __init__(self, rows: PlainRows) -> None:
        self._rows = rows
        self._ended: list[DeviceJobResult] = []

    def store(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        for key, row in zip(keys, rows.block_ids.tolist(), strict=True):
            fill_row(self._rows.array[row], key)
        self._ended.append(DeviceJobResult(job_id, success=True))

    def load(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        pairs = zip(keys, rows.block_ids.tolist(), strict=True)
        wrong = sum(not row_matches(self._rows.array[row], key) for key, row in pairs)
        self._ended.append(DeviceJobResult(job_id, success=True, mismatches=wrong))

    def poll(self, timeout_seconds: float) -> list[DeviceJobResult]:
        ended, self._ended = self._ended, []
        return ended

    def traffic(self) -> DeviceTraffic:
        return DeviceTraffic()

    def close(self) -> None:
        return


class Engine:
    """What an engine does with its manager.

    Attributes:
        manager: watched.
        rows: their memory.
        objects: the object tier.
    """

    def __init__(self, manager: WatchedManager, rows: PlainRows, objects: Tier) -> None:
        self.manager = manager
        self.rows = rows
        self.objects = objects

    def serve(self, requests: Sequence[TraceRequest], on_finished: Callable[[], None] = lambda: None) -> ReplayReport:
        return serve_trace(self.manager, RowDevice(self.rows), requests, concurrency=4, on_finished=on_finished)

    def store(self, keys: Sequence[OffloadKey]) -> None:
        """Store chunks and wait until the tiers have them."""
        request = ReqContext("stores")
        store = self.manager.prepare_store(keys, request)
        for key, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            fill_row(self.rows.array[row], key)
        self.manager.complete_store(store.keys_to_store, True, request)
        self.manager.on_request_finished(request)
        drain(self.manager, DEADLINE_SECONDS)

    def look_up(self, request: ReqContext, keys: Sequence[OffloadKey]) -> PrefixLookup:
        """Ask in every step until there is nothing to wait for."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (found := self.manager.lookup_prefix(keys, request)).must_wait:
            assert time.monotonic() < deadline, f"{request.req_id} still waits"
            self.manager.on_schedule_end()
            time.sleep(SECONDS_BETWEEN_STEPS)
        return found

    def load(self, request: ReqContext, keys: Sequence[OffloadKey]) -> list[str]:
        """Load what there is of a prefix, comparing bytes; returns where each chunk came from."""
        ready = keys[: self.look_up(request, keys).num_ready]
        sources = [self.manager.get_load_source(key, request) for key in ready]
        load = self.manager.prepare_load(ready, request)
        for key, row in zip(ready, load.block_ids.tolist(), strict=True):
            assert row_matches(self.rows.array[row], key)
        self.manager.complete_load(ready, request)
        self.manager.on_request_finished(request)
        return sources

    def stats(self, tier: str = "objects") -> dict[str, Any]:
        return dict(self.manager.get_stats()["tiers"][tier])


@contextmanager
def running_engine(
    place: Place,
    *,
    num_rows: int,
    name_space: Namespace | None = None,
    around: Callable[[Tier], Tier] = lambda tier: tier,
    memory_below: bool = False,
    **settings: Any,
) -> Iterator[Engine]:
    """An engine whose second tier is at ``place``; whatever its thread does, an alarm must stay silent at the end."""
    name_space = name_space or namespace()
    rows = PlainRows(num_rows, name_space.row_bytes)
    tier_type = resolve_tier(place.settings["type"])
    config = tier_type.config_type.model_validate({"retry": QUICK_RETRIES} | place.settings | settings)
    with ExitStack() as stack:

        def attach(name: str, make_tier: Callable[[TierContext], Tier], **settings: Any) -> TierWorker:
            return TierWorker(
                make_tier,
                JobLoop(),
                rows.row_views,
                name=name,
                row_bytes=name_space.row_bytes,
                namespace=name_space,
                **settings,
            )

        made: list[Tier] = []

        def make(context: TierContext) -> Tier:
            made.append(around(tier_type(config, context)))
            return made[0]

        tiers = [attach("objects", make, limits=config.limits, breaker=config.breaker)]
        if memory_below:
            tiers.append(attach("memory", lambda context: MemoryTier(MemoryTierConfig(), context)))
        primary = CPUPrimaryTierOffloadingManager(num_rows, "lru", False, mmap_region=rows)
        manager = TieringOffloadingManager(primary, tiers, row_bytes=name_space.row_bytes, promotion_limit=1.0)
        stack.callback(manager.shutdown)
        watched = WatchedManager(manager, stack.enter_context(io_alarm()))
        yield Engine(watched, rows, made[0])
        watched.check_that_nothing_blocked()


def generated(num_requests: int) -> list[TraceRequest]:
    return list(itertools.islice(generate_trace(1), num_requests))
