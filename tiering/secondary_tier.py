"""The scheduler's face of a secondary tier: jobs over row numbers, submitted and polled, never waited for.

`tiering.jobs.TierWorker` implements it once for every tier written to the coroutine contract of `tiering.tier`. A
client that brings its own threads (a C++ library) may implement it directly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiering.events import OffloadingEvent
from tiering.keys import OffloadKey
from tiering.request import ReqContext
from tiering.tier import BreakerConfig, LimitsConfig

__all__ = ["JobResult", "SecondaryTierManager", "TransferJob"]


@dataclass(frozen=True, slots=True)
class TransferJob:
    """A batch of chunks to move between rows and one tier.

    Attributes:
        job_id: unique within the manager.
        keys: the chunks, distinct.
        rows: their row numbers, in the same order.
        req_id: the request that waits for a load; empty for stores, which belong to no request.
    """

    job_id: int
    keys: tuple[OffloadKey, ...]
    rows: tuple[int, ...]
    req_id: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The one result of a job. After it, nothing of the job touches its rows any more.

    Attributes:
        job_id: which job.
        succeeded: one flag per key of the job.
        error: why the whole batch failed, or empty.
    """

    job_id: int
    succeeded: Sequence[bool]
    error: str = ""


class SecondaryTierManager(ABC):
    """One secondary tier as the manager drives it. Scheduler thread only; every method returns at once.

    Attributes:
        name: unique among the tiers of a manager.
        tier_type: the type written in the configuration.
        limits: deadlines and bounds that the manager applies to it.
        breaker: when the manager leaves it alone.
    """

    name: str
    tier_type: str
    limits: LimitsConfig = LimitsConfig()
    breaker: BreakerConfig = BreakerConfig()

    @abstractmethod
    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """Say whether the tier has the chunk, or None while it does not know: ask again in a later step.

        An answer other than None is given once per request and key; the manager remembers it.
        """

    @abstractmethod
    def submit_store(self, job: TransferJob) -> None:
        """Begin to copy rows into the tier. The rows stay pinned until the job's result was polled."""

    @abstractmethod
    def submit_load(self, job: TransferJob) -> None:
        """Begin to fill rows from the tier. The rows stay reserved until the job's result was polled."""

    @abstractmethod
    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the results that have come in since the last call, each once."""

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Note that a request used these chunks; the last one given becomes the most recent."""

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget the request. No lookup or load for it follows, unless the same id begins a new life."""

    def on_schedule_end(self) -> None:
        """The step has ended: hand over what was gathered in it."""

    def has_pending_work(self) -> bool:
        """Whether a job or a question to the tier is under way."""
        return False

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return what the tier has stored and removed since the last call."""
        return ()

    @property
    def num_ends(self) -> int:
        """How often the process it runs in, if that is one of its own, has ended by itself."""
        return 0

    def take_corrupt(self) -> int:
        """Return how many chunks were dropped since the last call because their bytes did not verify."""
        return 0

    def shutdown(self) -> None:
        """End all jobs, then close. May wait; called once, after the last other call."""
