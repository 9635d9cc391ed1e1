"""A secondary tier as the manager holds it: behind a guard.

Whatever the tier raises or answers wrongly ends here, as a failed job or an absent key, counted and named in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from tiering.events import OffloadingEvent
from tiering.keys import OffloadKey
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult, SecondaryTierManager, TransferJob
from tiering.stats import TierStats

__all__ = ["AttachedTier", "EndedJobs"]

logger = logging.getLogger(__name__)


class EndedJobs(NamedTuple):
    """Jobs whose rows are no longer touched: the stores, and the loads with one flag per key."""

    stores: list[TransferJob]
    loads: list[tuple[TransferJob, Sequence[bool]]]


class AttachedTier:
    """Calls one tier without ever raising. Scheduler thread only.

    Attributes:
        name: the tier's name.
        stats: what it has done.
    """

    def __init__(self, tier: SecondaryTierManager, row_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = tier.name
        self.stats = TierStats()
        self._tier = tier
        self._row_bytes = row_bytes
        self._clock = clock
        self._stores_since = 0.0
        self._loads_since = 0.0
        self._stores: dict[int, TransferJob] = {}
        self._loads: dict[int, TransferJob] = {}
        self._last_fault = ""

    def matches(self, names: frozenset[str]) -> bool:
        """Whether the tier's name or type is among ``names``."""
        return self.name in names or self._tier.tier_type in names

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """See `SecondaryTierManager.lookup`; a tier that raises does not have the chunk."""
        try:
            return self._tier.lookup(key, req_context)
        except Exception as error:  # the tier is not ours
            self.stats.lookup_failures += 1
            self._fault("lookup", error)
            return False

    def submit_store(self, job: TransferJob) -> bool:
        """Begin a store; False if the tier refused by raising, and then no result follows."""
        return self._submit(job, self._stores, self._tier.submit_store)

    def submit_load(self, job: TransferJob) -> bool:
        """Begin a load; False if the tier refused by raising, and then no result follows."""
        return self._submit(job, self._loads, self._tier.submit_load)

    def poll(self) -> EndedJobs:
        """Return the jobs that have ended. Results for unknown jobs are dropped."""
        ended = EndedJobs([], [])
        try:
            for result in self._tier.get_finished_jobs():
                self._take_up(result, ended)
        except Exception as error:  # the tier is not ours; what it reported before counts
            self._fault("get_finished_jobs", error)
        return ended

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See `SecondaryTierManager.touch`."""
        try:
            self._tier.touch(keys)
        except Exception as error:  # the tier is not ours
            self._fault("touch", error)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """See `SecondaryTierManager.on_request_finished`."""
        try:
            self._tier.on_request_finished(req_context)
        except Exception as error:  # the tier is not ours
            self._fault("on_request_finished", error)

    def on_schedule_end(self) -> None:
        """See `SecondaryTierManager.on_schedule_end`."""
        try:
            self._tier.on_schedule_end()
        except Exception as error:  # the tier is not ours
            self._fault("on_schedule_end", error)

    def has_pending_work(self) -> bool:
        """Whether a job has no result yet or the tier itself says so."""
        try:
            return bool(self._stores or self._loads or self._tier.has_pending_work())
        except Exception as error:  # the tier is not ours
            self._fault("has_pending_work", error)
            return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        """See `SecondaryTierManager.take_events`."""
        try:
            return list(self._tier.take_events())
        except Exception as error:  # the tier is not ours
            self._fault("take_events", error)
            return ()

    def shutdown(self) -> Exception | None:
        """Close the tier; returns what it raised instead of raising it."""
        try:
            self._tier.shutdown()
        except Exception as error:  # the tier is not ours
            self._fault("shutdown", error)
            return error
        return None

    def _submit(self, job: TransferJob, jobs: dict[int, TransferJob], submit: Callable[[TransferJob], None]) -> bool:
        jobs[job.job_id] = job
        try:
            submit(job)
        except Exception as error:  # the tier is not ours
            del jobs[job.job_id]
            self._count(job, [False] * len(job.keys), is_store=jobs is self._stores)
            self._fault(f"submit of {len(job.keys)} chunks", error)
            return False
        self.stats.jobs_in_flight += 1
        if len(jobs) == 1 and jobs is self._stores:
            self._stores_since = self._clock()
        elif len(jobs) == 1:
            self._loads_since = self._clock()
        return True

    def _take_up(self, result: JobResult, ended: EndedJobs) -> None:
        if (store := self._stores.pop(result.job_id, None)) is not None:
            self._end(store, result, is_store=True)
            ended.stores.append(store)
        elif (load := self._loads.pop(result.job_id, None)) is not None:
            ended.loads.append((load, self._end(load, result, is_store=False)))
        else:
            self._fault("get_finished_jobs", ValueError(f"a result for job {result.job_id}, which is not open"))

    def _end(self, job: TransferJob, result: JobResult, *, is_store: bool) -> Sequence[bool]:
        succeeded = result.succeeded
        if not isinstance(succeeded, Sequence) or len(succeeded) != len(job.keys):
            self._fault("job", ValueError(f"{len(job.keys)} flags expected for as many chunks, not {succeeded!r:.100}"))
            succeeded = [False] * len(job.keys)
        elif result.error:
            self._fault("store" if is_store else "load", result.error)
        self.stats.jobs_in_flight -= 1
        if is_store and not self._stores:
            self.stats.store_seconds += self._clock() - self._stores_since
        elif not is_store and not self._loads:
            self.stats.load_seconds += self._clock() - self._loads_since
        self._count(job, succeeded, is_store=is_store)
        return succeeded

    def _count(self, job: TransferJob, succeeded: Sequence[bool], *, is_store: bool) -> None:
        moved = sum(map(bool, succeeded))
        stats = self.stats
        if is_store:
            stats.stored_chunks += moved
            stats.stored_bytes += moved * self._row_bytes
            stats.store_failures += len(job.keys) - moved
        else:
            stats.loaded_chunks += moved
            stats.loaded_bytes += moved * self._row_bytes
            stats.load_failures += len(job.keys) - moved

    def _fault(self, what: str, error: Exception | str) -> None:
        self.stats.faults += 1
        text = f"{what}: {error if isinstance(error, str) else f'{type(error).__name__}: {error}'}"
        if text != self._last_fault:  # a fault that repeats is in the counters, not in a thousand log lines
            self._last_fault = text
            logger.warning("tier %s failed in %s; this costs misses only", self.name, text)
