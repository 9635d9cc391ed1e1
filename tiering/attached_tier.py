"""A secondary tier as the manager holds it: behind a guard.

Whatever the tier raises, answers wrongly or does not answer in time ends here, as a failed job or an absent key,
counted and named in the log. A tier that fails again and again is left alone for a while (`tiering.breaker`).
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tiering.breaker import Breaker, BreakerState
from tiering.errors import TierError, text_of
from tiering.events import OffloadingEvent
from tiering.flags import checked_flags
from tiering.keys import OffloadKey
from tiering.open_jobs import OpenJobs
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult, SecondaryTierManager, TransferJob
from tiering.stats import TierStats

__all__ = ["AttachedTier", "FinishedJobs"]

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_LINES = 60.0
_UNNAMED = ""


class FinishedJobs(NamedTuple):
    """What a poll has found.

    Attributes:
        stores: jobs whose rows are no longer touched.
        loads: likewise, with one flag per key; those that were reported as overdue before, too.
        overdue_loads: loads whose deadline has passed: nobody waits for their keys any more, but their rows are still
            in use.
        slow_loads: loads that take longer than nearly all before them, where that is asked for.
    """

    stores: list[TransferJob]
    loads: list[tuple[TransferJob, Sequence[bool]]]
    overdue_loads: list[TransferJob]
    slow_loads: list[TransferJob]


class AttachedTier:
    """Calls one tier without ever raising. Scheduler thread only.

    Attributes:
        name: the tier's name.
        stats: what it has done.
        breaker: whether it is being left alone.
    """

    def __init__(
        self,
        tier: SecondaryTierManager,
        row_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        num_rows: int = 2**63,
    ) -> None:
        """Guard ``tier``, whose stores may pin a share of ``num_rows`` rows."""
        self.name = tier.name
        self.stats = TierStats()
        self.breaker = Breaker(tier.name, tier.breaker, clock)
        self._tier = tier
        self._tier_type = tier.tier_type
        self._row_bytes = row_bytes
        self._clock = clock
        self._now = clock()
        self._max_store_chunks = max(1, int(num_rows * tier.limits.store_share))
        self._stores = OpenJobs(tier.limits.store_timeout, clock)
        self._loads = OpenJobs(tier.limits.load_timeout, clock)
        # Keys of late loads: while one of them is still under way, another try would only be late as well.
        self._late_keys: set[OffloadKey] = set()
        self._hedge_quantile = tier.limits.hedge_quantile
        self._lookup_timeout = tier.limits.lookup_timeout
        # Per request, since when it waits for which answer.
        self._unanswered: defaultdict[str, dict[OffloadKey, float]] = defaultdict(dict)
        self._lookups_failed = False
        self._silent_until: dict[str, float] = {}

    def matches(self, names: frozenset[str]) -> bool:
        """Whether the tier's name or type is among ``names``."""
        return self.name in names or self._tier_type in names

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """See `SecondaryTierManager.lookup`; a tier that raises, is late or is left alone does not have the chunk."""
        if not self.breaker.allows() or key in self._late_keys:
            return False
        try:
            present = self._tier.lookup(key, req_context)
            present = present if present is None else bool(present)  # of whatever it is; an array would raise
        except BaseException as error:  # the tier is not ours
            self.stats.lookup_failures += 1
            self._lookups_failed = True
            self._unanswered.get(req_context.req_id, {}).pop(key, None)
            self._fault("lookup", error)
            return False
        if present is not None:
            if self._unanswered:
                self._unanswered.get(req_context.req_id, {}).pop(key, None)
        elif self._now >= self._unanswered[req_context.req_id].setdefault(key, self._now) + self._lookup_timeout:
            self.stats.lookup_timeouts += 1
            self._lookups_failed = True
            return False
        return present

    def admit_stores(self, num_chunks: int) -> int:
        """Say how many of so many chunks may be handed over now; the others are counted as shed.

        A tier with nothing on its way takes all: it is not the slow one.
        """
        admitted = num_chunks
        if not self.breaker.allows():
            admitted = 0
        elif self._stores:
            admitted = min(num_chunks, max(0, self._max_store_chunks - self._stores.num_chunks))
        self.stats.stores_shed += num_chunks - admitted
        return admitted

    def submit_store(self, job: TransferJob) -> bool:
        """Begin a store; False if the tier refused by raising, and then no result follows."""
        return self._submit(job, self._stores, self._tier.submit_store)

    def submit_load(self, job: TransferJob) -> bool:
        """Begin a load; False if the tier refused by raising or is left alone, and then no result follows."""
        return self.breaker.allows() and self._submit(job, self._loads, self._tier.submit_load)

    def poll(self) -> FinishedJobs:
        """Return the jobs that have ended or become overdue. Results for unknown jobs are dropped."""
        self._now = self._clock()
        finished = FinishedJobs([], [], [], [])
        try:
            for result in self._tier.get_finished_jobs():
                self._take_up(result, finished)
            if num_corrupt := self._tier.take_corrupt():
                self.stats.corrupt += num_corrupt
                self.breaker.corrupt(num_corrupt)
        except BaseException as error:  # the tier is not ours; what it reported before counts
            self._fault("get_finished_jobs", error)
        if self._loads or self._stores:
            self._note_late_jobs(finished)
        if self._lookups_failed:
            self._lookups_failed = False
            self.breaker.failed()
        if _UNNAMED in self._unanswered:
            self._forget_questions(self._unanswered[_UNNAMED])
        return finished

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See `SecondaryTierManager.touch`."""
        try:
            if self.breaker.state is BreakerState.CLOSED:
                self._tier.touch(keys)
        except BaseException as error:  # the tier is not ours
            self._fault("touch", error)

    def on_request_finished(self, req_context: ReqContext) -> None:
        """See `SecondaryTierManager.on_request_finished`."""
        self._unanswered.pop(req_context.req_id, None)
        try:
            self._tier.on_request_finished(req_context)
        except BaseException as error:  # the tier is not ours
            self._fault("on_request_finished", error)

    def on_schedule_end(self) -> None:
        """See `SecondaryTierManager.on_schedule_end`."""
        try:
            self._tier.on_schedule_end()
        except BaseException as error:  # the tier is not ours
            self._fault("on_schedule_end", error)

    def has_pending_work(self) -> bool:
        """Whether a job has no result yet or the tier itself says so."""
        try:
            return bool(self._stores or self._loads or self._tier.has_pending_work())
        except BaseException as error:  # the tier is not ours
            self._fault("has_pending_work", error)
            return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        """See `SecondaryTierManager.take_events`."""
        try:
            return list(self._tier.take_events())
        except BaseException as error:  # the tier is not ours
            self._fault("take_events", error)
            return ()

    def get_stats(self) -> Mapping[str, Any]:
        """Return `TierStats` by name, with the state of the breaker."""
        self.stats.store_seconds = self._stores.busy_seconds
        self.stats.load_seconds = self._loads.busy_seconds
        try:
            self.stats.process_ends = self._tier.num_ends
        except BaseException as error:  # the tier is not ours
            self._fault("num_ends", error)
        self.stats.jobs_in_flight = len(self._stores) + len(self._loads)
        breaker = {"breaker": self.breaker.state.value, "breaker_opened": self.breaker.num_opened}
        return {**self.stats.as_dict(), **breaker}

    def shutdown(self) -> Exception | None:
        """Close the tier; returns what it raised instead of raising it."""
        try:
            self._tier.shutdown()
        except BaseException as error:  # the tier is not ours
            self._fault("shutdown", error)
            return error if isinstance(error, Exception) else TierError(text_of(error))
        return None

    def _submit(self, job: TransferJob, jobs: OpenJobs, submit: Callable[[TransferJob], None]) -> bool:
        jobs.add(job)
        self.breaker.started()
        try:
            submit(job)
        except BaseException as error:  # the tier is not ours
            jobs.end(job.job_id)
            self.breaker.failed()
            self._count(job, [False] * len(job.keys), is_store=jobs is self._stores)
            self._fault("submit", error)
            return False
        return True

    def _take_up(self, result: object, finished: FinishedJobs) -> None:
        if not isinstance(result, JobResult):
            self._fault("get_finished_jobs", TypeError(f"JobResult expected, not {result!r:.100}"))
        elif (store := self._stores.end(result.job_id)) is not None:
            self._check(store.job, result, is_store=True, was_late=store.was_late)
            finished.stores.append(store.job)
        elif (load := self._loads.end(result.job_id)) is not None:
            succeeded = self._check(load.job, result, is_store=False, was_late=load.was_late)
            if load.was_late:
                self._late_keys.difference_update(load.job.keys)
            finished.loads.append((load.job, succeeded))
        else:
            self._fault("get_finished_jobs", ValueError(f"a result for job {result.job_id}, which is not open"))

    def _check(self, job: TransferJob, result: JobResult, *, is_store: bool, was_late: bool) -> Sequence[bool]:
        """Return the result's flags, or as many failures where they do not fit; a late job has been counted before."""
        fault: BaseException | str = result.error
        try:
            succeeded = checked_flags(result.succeeded, len(job.keys))
        except BaseException as error:  # the tier is not ours
            fault, succeeded = error, [False] * len(job.keys)
        if fault:
            self._fault("store" if is_store else "load", fault)
        if not was_late:
            (self.breaker.failed if fault else self.breaker.succeeded)()
            self._count(job, succeeded, is_store=is_store)
        return succeeded

    def _note_late_jobs(self, finished: FinishedJobs) -> None:
        late_loads, late_stores = self._loads.take_late(self._now), self._stores.take_late(self._now)
        for job in late_loads:
            self.stats.load_timeouts += len(job.keys)
            self._late_keys.update(job.keys)
            finished.overdue_loads.append(job)
        if self._hedge_quantile is not None:
            finished.slow_loads.extend(self._loads.take_slow(self._now, self._hedge_quantile))
        for job in late_stores:
            self.stats.store_timeouts += len(job.keys)
        for job in late_loads + late_stores:
            self.breaker.failed()
            self._fault("job", TimeoutError(f"no result for {len(job.keys)} chunks in time"))

    def _count(self, job: TransferJob, succeeded: Sequence[bool], *, is_store: bool) -> None:
        moved = succeeded.count(True)
        stats = self.stats
        if is_store:
            stats.stored_chunks += moved
            stats.stored_bytes += moved * self._row_bytes
            stats.store_failures += len(job.keys) - moved
        else:
            stats.loaded_chunks += moved
            stats.loaded_bytes += moved * self._row_bytes
            stats.load_failures += len(job.keys) - moved

    def _forget_questions(self, asked_at: dict[OffloadKey, float]) -> None:
        """Forget keys of requests without a name, whose end nobody tells; the oldest come first."""
        before = self._now - 2 * self._lookup_timeout
        for key in list(takewhile(lambda key: asked_at[key] < before, asked_at)):
            del asked_at[key]

    def _fault(self, what: str, error: BaseException | str) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error  # the user's, who ends the engine
        self.stats.faults += 1
        now = self._clock()
        if now >= self._silent_until.get(what, now):  # what repeats is in the counters, not in a thousand log lines
            self._silent_until[what] = now + _SECONDS_BETWEEN_LINES
            text = error if isinstance(error, str) else text_of(error)
            logger.warning("tier %s failed in %s: %s; this costs misses only", self.name, what, text)
