"""A manager over a shared region and a tier in a process of its own, and what an engine does with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tiering.isolation import IsolatedTier, RestartDelays
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.request import ReqContext
from tiering.testing import PlainRows, check_quiescent, drain, fill_row, row_matches
from tiering.testing.plain_rows import UNWRITTEN
from tiering.tier import BreakerConfig, LimitsConfig, TierConfig

ROW_BYTES = 8192
DEADLINE_SECONDS = 60.0

PATIENT = LimitsConfig(lookup_timeout=60, load_timeout=60, store_timeout=60, store_share=1.0)
NEVER_OPENS = BreakerConfig(window=10_000, min_failures=10_000)
AT_ONCE = RestartDelays(0.0, 0.0)


def key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(8, "big"), 0)


def keys(numbers: Iterable[int]) -> list[OffloadKey]:
    return [key(number) for number in numbers]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.002)


def is_alive(pid: int) -> bool:
    """Whether the process runs: neither gone nor waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


class RegionRows(PlainRows):
    """The rows of a region, for checks that look at bytes."""

    def __init__(self, region: SharedOffloadRegion) -> None:
        self.array = np.asarray(region.create_kv_memoryview())
        self.array[:] = UNWRITTEN


class IsolationRig:
    """An engine of one request at a time."""

    def __init__(self, region: SharedOffloadRegion, tier: IsolatedTier, *, promotion_limit: float) -> None:
        self.num_rows = region.num_blocks
        self.rows = RegionRows(region)
        self.tier = tier
        primary = CPUPrimaryTierOffloadingManager(self.num_rows, "lru", False, mmap_region=region)
        self.manager = TieringOffloadingManager(primary, [tier], row_bytes=ROW_BYTES, promotion_limit=promotion_limit)
        self.num_requests = 0

    def request(self) -> ReqContext:
        self.num_requests += 1
        return ReqContext(f"request-{self.num_requests}")

    def begin_store(self, wanted: Sequence[OffloadKey]) -> None:
        """Store chunks, without waiting for the tier."""
        request = self.request()
        store = self.manager.prepare_store(wanted, request)
        assert store is not None
        for stored, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
            fill_row(self.rows.array[row], stored)
        self.manager.complete_store(store.keys_to_store)
        self.manager.on_request_finished(request)
        self.manager.on_schedule_end()

    def store(self, wanted: Sequence[OffloadKey]) -> None:
        """Store chunks, until the tier has them."""
        self.begin_store(wanted)
        self.settle()

    def forget_rows(self) -> None:
        """Have no chunk in a row any more."""
        self.manager.reset_cache()
        self.manager.on_schedule_end()

    def load(self, wanted: Sequence[OffloadKey]) -> int:
        """Load the leading chunks that are there, from whatever tier, comparing bytes; returns how many."""
        request = self.request()
        while (found := self.manager.lookup_prefix(wanted, request)).must_wait:
            self.settle()
        hits = wanted[: found.num_ready]
        rows = self.manager.prepare_load(hits, request).block_ids.tolist()
        for loaded, row in zip(hits, rows, strict=True):
            assert row_matches(self.rows.array[row], loaded), f"row {row} has not the bytes of {loaded.hex()}"
        self.manager.complete_load(hits, request)
        self.manager.on_request_finished(request)
        self.manager.on_schedule_end()
        return found.num_ready

    def statuses(self, wanted: Sequence[OffloadKey]) -> list[LookupStatus]:
        """What a new request is told in its first step."""
        request = self.request()
        found = [self.manager.status(one, request) for one in wanted]
        self.manager.on_request_finished(request)
        self.settle()
        return found

    def settle(self) -> None:
        drain(self.manager, DEADLINE_SECONDS)

    def kill(self) -> None:
        os.kill(self.tier.pid, signal.SIGKILL)

    def num_open_jobs(self) -> int:
        return int(self.stats()["jobs_in_flight"])

    def stats(self) -> dict[str, float]:
        return dict(self.manager.get_stats()["tiers"][self.tier.name])

    def check(self, seen: Iterable[OffloadKey]) -> None:
        """The quiescence check; everything must have ended."""
        self.settle()
        check_quiescent(self.manager, self.num_rows, rows=self.rows, keys=seen)


@contextmanager
def isolated(
    config: TierConfig,
    directory: Path,
    *,
    num_rows: int = 16,
    events: bool = False,
    restart_delays: RestartDelays = AT_ONCE,
    reopen_seconds: float | None = None,
    drain_seconds: float = 20.0,
    promotion_limit: float = 1.0,
) -> Iterator[IsolationRig]:
    """A rig whose region lies in ``directory``; at the end nothing of it may be left."""
    layout = RegionLayout(num_rows, 1, ROW_BYTES)
    region = SharedOffloadRegion("e", layout.total_bytes, num_rows, None, 1, ROW_BYTES, directory=directory)
    try:
        tier = IsolatedTier(
            config,
            region,
            Namespace("model", row_bytes=ROW_BYTES),
            enable_events=events,
            restart_delays=restart_delays,
            reopen_seconds=reopen_seconds,
            drain_seconds=drain_seconds,
        )
    except BaseException:
        region.cleanup()
        raise
    tier.announce_contents()
    region.unlink()
    rig = IsolationRig(region, tier, promotion_limit=promotion_limit)
    try:
        yield rig
    finally:
        pid = tier.pid
        rig.manager.shutdown()
        assert not is_alive(pid)
