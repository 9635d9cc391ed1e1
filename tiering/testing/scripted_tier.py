"""A secondary tier that does what a test says, when the test says it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tiering.events import EventLog, OffloadingEvent
from tiering.keys import OffloadKey
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult, SecondaryTierManager, TransferJob
from tiering.testing.patterns import fill_row
from tiering.testing.plain_rows import UNWRITTEN, PlainRows

__all__ = ["Call", "ScriptedTier"]


class Call(NamedTuple):
    """One call that a `ScriptedTier` has got.

    Attributes:
        method: name of the method.
        keys: the chunks it was about.
        req_id: the request it was for.
        job: the job that it submitted.
    """

    method: str
    keys: tuple[OffloadKey, ...] = ()
    req_id: str = ""
    job: TransferJob | None = None


class ScriptedTier(SecondaryTierManager):
    """The scheduler's face of a tier without anything behind it. One thread, no I/O.

    A lookup is answered from ``objects``, unless ``answers`` says otherwise. A job stays open until the test ends it
    with `finish`; that is also when its rows are read or written, as late as a real tier might do it. With ``rows``,
    a load that succeeds fills the row with the pattern of its key, and one that fails leaves rubbish in it.

    Attributes:
        objects: the chunks it has. A store that succeeds adds to it.
        answers: what `lookup` says of a chunk whatever ``objects`` has; None says "ask again".
        stored_bytes: per stored chunk, what was in its row, where ``rows`` were given.
        calls: every call so far but `get_finished_jobs`, `has_pending_work` and `take_events`, in order.
        jobs: the jobs that are open, oldest first.
        finishes_itself: whether jobs succeed without the test's doing, between submission and the next poll.
    """

    tier_type = "scripted"

    def __init__(
        self,
        name: str = "scripted",
        rows: PlainRows | None = None,
        *,
        objects: Iterable[OffloadKey] = (),
        enable_events: bool = False,
        finishes_itself: bool = False,
    ) -> None:
        self.name = name
        self.objects: set[OffloadKey] = set(objects)
        self.answers: dict[OffloadKey, bool | None] = {}
        self.stored_bytes: dict[OffloadKey, bytes] = {}
        self.calls: list[Call] = []
        self.jobs: list[TransferJob] = []
        self.finishes_itself = finishes_itself
        self._rows = rows
        self._stores: set[int] = set()
        self._results: list[JobResult] = []
        self._events = EventLog("STORAGE", name) if enable_events else None
        self._raises: defaultdict[str, deque[BaseException]] = defaultdict(deque)

    def raise_in(self, method: str, *errors: BaseException) -> None:
        """Let the next calls of ``method`` raise ``errors``, one each; then it works again."""
        self._raises[method] += errors

    def finish(self, job: TransferJob | None = None, succeeded: bool | Sequence[bool] = True, error: str = "") -> None:
        """End a job, the oldest one unless another is given; its result comes with the next poll.

        Args:
            job: one of `jobs`.
            succeeded: one flag for all chunks or one for each. A sequence of another length goes into the result as
                it is, like the answer of a faulty tier.
            error: why the batch failed as a whole.
        """
        job = self.jobs[0] if job is None else job
        self.jobs.remove(job)
        flags = [succeeded] * len(job.keys) if isinstance(succeeded, bool) else list(succeeded)
        for key, row, done in zip(job.keys, job.rows, flags, strict=False):
            if job.job_id not in self._stores:
                self._write(key, row, done=done)
            elif done:
                self._keep(key, row)
        self._stores.discard(job.job_id)
        self._results.append(JobResult(job.job_id, flags, error))

    def finish_all(self, succeeded: bool = True) -> None:
        """End all open jobs."""
        while self.jobs:
            self.finish(succeeded=succeeded)

    def report(self, result: JobResult) -> None:
        """Let the next poll return ``result``, whatever it says."""
        self._results.append(result)

    def evict(self, *keys: OffloadKey) -> None:
        """Lose chunks, with an event."""
        self.objects.difference_update(keys)
        if self._events is not None:
            self._events.removed(keys)

    def calls_of(self, method: str) -> list[Call]:
        """The calls of one method so far, in order."""
        return [call for call in self.calls if call.method == method]

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        self._note(Call("lookup", (key,), req_context.req_id))
        return self.answers.get(key, key in self.objects)

    def submit_store(self, job: TransferJob) -> None:
        self._note(Call("submit_store", job.keys, job.req_id, job))
        self._stores.add(job.job_id)
        self.jobs.append(job)

    def submit_load(self, job: TransferJob) -> None:
        self._note(Call("submit_load", job.keys, job.req_id, job))
        self.jobs.append(job)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Yield the results; an error set for this method comes after the first, the others in the next poll."""
        if self.finishes_itself:
            self.finish_all()
        if self._results:
            yield self._results.pop(0)
        self._raise("get_finished_jobs")
        while self._results:
            yield self._results.pop(0)

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        self._note(Call("touch", tuple(keys)))

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._note(Call("on_request_finished", (), req_context.req_id))

    def on_schedule_end(self) -> None:
        self._note(Call("on_schedule_end"))

    def has_pending_work(self) -> bool:
        self._raise("has_pending_work")
        return bool(self._results)

    def take_events(self) -> Iterable[OffloadingEvent]:
        self._raise("take_events")
        return self._events.take() if self._events is not None else ()

    def shutdown(self) -> None:
        self._note(Call("shutdown"))

    def _note(self, call: Call) -> None:
        self.calls.append(call)
        self._raise(call.method)

    def _raise(self, method: str) -> None:
        if self._raises[method]:
            raise self._raises[method].popleft()

    def _write(self, key: OffloadKey, row: int, *, done: bool) -> None:
        if self._rows is not None and done:
            fill_row(self._rows.array[row], key)
        elif self._rows is not None:
            self._rows.array[row] = UNWRITTEN

    def _keep(self, key: OffloadKey, row: int) -> None:
        self.objects.add(key)
        if self._rows is not None:
            self.stored_bytes[key] = self._rows.array[row].tobytes()
        if self._events is not None:
            self._events.stored((key,))
