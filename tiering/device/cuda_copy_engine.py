"""Copies between device and host memory, on streams beside the engine's compute stream."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass

from tiering.device.copy_engine import CopyEngine, CopyResult
from tiering.device.cuda_runtime import CudaRuntime, Direction, Event, Stream
from tiering.device.pinned_memory import PinnedMemory
from tiering.device.sub_blocks import IntArray

__all__ = ["CudaCopyEngine"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    """A job on its stream: wait for the compute stream and for the job before, start, copies, end.

    ``end`` is None where it could not be recorded.
    """

    job_id: int
    stream: Stream
    start: Event
    end: Event | None
    memory: Sequence[object]
    error: str | None = None


class CudaCopyEngine(CopyEngine):
    """One direction of copies on a device. Streams and events are pooled: there are as many as jobs at the same time.

    Each job waits for the compute stream of the moment of its submission, in both directions: a kernel that writes the
    blocks to be stored may still run, and so may one that clears the blocks to be loaded.
    """

    def __init__(self, runtime: CudaRuntime, direction: Direction, pinned: PinnedMemory | None) -> None:
        """Take a share of the pinned host memory.

        Args:
            runtime: the device.
            direction: of all jobs.
            pinned: what all host pointers lie in, or None where it is not pinned: then pieces are copied one by one,
                and submitting blocks.
        """
        self._runtime = runtime
        self._direction = direction
        self._pinned = pinned.hold() if pinned else None
        self._copy = runtime.copy_batch if pinned and runtime.can_batch else runtime.copy_each
        self._jobs: deque[_Job] = deque()
        self._results: list[CopyResult] = []
        self._streams: list[Stream] = []
        self._events: list[Event] = []
        self._closed = False
        # The jobs own their memory: dropping the engine must not free it under a copy that still runs.
        weakref.finalize(self, _wait_for, runtime, self._jobs)

    def submit(
        self, job_id: int, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, memory: Sequence[object] = ()
    ) -> None:
        if self._closed:
            raise ValueError(f"copy job {job_id}: the copy engine has been shut down")
        stream = self._streams.pop() if self._streams else self._runtime.new_stream()
        start, end = (self._events.pop() if self._events else self._runtime.new_event() for _ in range(2))
        job = _Job(job_id, stream, start, end, memory)
        try:
            self._launch(job, src_ptrs, dst_ptrs, sizes)
        except Exception as error:
            job.error = _reason(error)
        try:
            # Also after a failed launch: some pieces may be on their way, and the job has not ended before they have.
            self._runtime.record(end, stream)
        except Exception as error:
            # Only a device that is lost refuses this, and on a lost device nothing is copied any more.
            job.end = None
            job.error = job.error or _reason(error)
        self._jobs.append(job)

    def poll(self) -> list[CopyResult]:
        while self._jobs and self._has_ended(self._jobs[0]):
            self._retire(self._jobs.popleft())
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Set[int]) -> None:
        _wait_for(self._runtime, [job for job in self._jobs if job.job_id in job_ids])

    def shutdown(self) -> None:
        if self._closed:
            return
        self._closed = True
        _wait_for(self._runtime, self._jobs)
        while self._jobs:
            job = self._jobs.popleft()
            self._has_ended(job)
            self._retire(job)
        self._streams.clear()
        self._events.clear()
        if self._pinned is not None:
            self._pinned.release()

    def _launch(self, job: _Job, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
        self._runtime.wait_for_compute(job.stream)
        if self._jobs and self._jobs[-1].end is not None:
            self._runtime.wait_for_event(job.stream, self._jobs[-1].end)
        self._runtime.record(job.start, job.stream)
        if len(sizes):
            self._copy(job.stream, src_ptrs, dst_ptrs, sizes, self._direction)

    def _has_ended(self, job: _Job) -> bool:
        if job.end is None:
            return True
        try:
            return self._runtime.has_happened(job.end)
        except Exception as error:
            job.end = None
            job.error = job.error or _reason(error)
            return True

    def _retire(self, job: _Job) -> None:
        seconds = 0.0
        if job.error is None:
            try:
                seconds = self._runtime.seconds_between(job.start, job.end)
            except Exception as error:
                job.error = _reason(error)
        if job.error is not None:
            logger.error("copy job %d (%s) failed: %s", job.job_id, self._direction.value, job.error)
        if job.end is not None:
            self._streams.append(job.stream)
            self._events += (job.start, job.end)
        self._results.append(CopyResult(job.job_id, seconds, job.error))


def _wait_for(runtime: CudaRuntime, jobs: Sequence[_Job] | deque[_Job]) -> None:
    for job in jobs:
        if job.end is not None:
            # What is wrong with the job is found, and told, when its result is polled.
            with suppress(Exception):
                runtime.synchronize(job.end)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
