"""The jobs of one tier and one direction that have no result yet, and their deadlines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tiering.secondary_tier import TransferJob

__all__ = ["EndedJob", "OpenJobs"]

_NUM_SAMPLES = 128
_MIN_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has its result; ``was_late`` if its deadline had passed before."""

    job: TransferJob
    was_late: bool


class OpenJobs:
    """Jobs in the order of their submission. A late job stays open: its rows are in use until its result is there.

    Attributes:
        num_chunks: chunks of all open jobs.
    """

    def __init__(self, timeout_seconds: float, clock: Callable[[], float]) -> None:
        self.num_chunks = 0
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._deadlines: dict[int, float] = {}
        self._began: dict[int, float] = {}
        self._slow: set[int] = set()
        self._seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self._jobs: dict[int, TransferJob] = {}
        self._busy_seconds = 0.0
        self._busy_since = 0.0

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[TransferJob]:
        return iter(self._jobs.values())

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one job was open."""
        return self._busy_seconds + (self._clock() - self._busy_since if self._jobs else 0.0)

    def add(self, job: TransferJob) -> None:
        """Open a job."""
        now = self._clock()
        if not self._jobs:
            self._busy_since = now
        self._jobs[job.job_id] = job
        self._deadlines[job.job_id] = now + self._timeout_seconds
        self._began[job.job_id] = now
        self.num_chunks += len(job.keys)

    def end(self, job_id: int) -> EndedJob | None:
        """Close a job; None if it is not open."""
        job = self._jobs.get(job_id)
        if job is None:
            return None
        self._busy_seconds = self.busy_seconds
        self._busy_since = now = self._clock()
        self._seconds.append(now - self._began.pop(job_id))
        self._slow.discard(job_id)
        del self._jobs[job_id]
        self.num_chunks -= len(job.keys)
        return EndedJob(job, was_late=self._deadlines.pop(job_id, None) is None)

    def take_late(self, now: float) -> list[TransferJob]:
        """Return the jobs whose deadline has passed since the last call."""
        late = []
        for job_id, deadline in self._deadlines.items():
            if deadline > now:
                break
            late.append(self._jobs[job_id])
        for job in late:
            del self._deadlines[job.job_id]
            self._slow.add(job.job_id)
        return late

    def take_slow(self, now: float, quantile: float) -> list[TransferJob]:
        """Return the jobs open for longer than that quantile of the last ones, each once; at first none."""
        if len(self._seconds) < _MIN_SAMPLES:
            return []
        longest = sorted(self._seconds)[int(quantile * len(self._seconds))]
        slow = [job_id for job_id, began in self._began.items() if now - began > longest and job_id not in self._slow]
        self._slow.update(slow)
        return [self._jobs[job_id] for job_id in slow]
