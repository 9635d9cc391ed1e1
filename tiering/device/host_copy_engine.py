"""Copies within host memory, on threads of its own."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tiering.device.copy_engine import CopyEngine, CopyResult
from tiering.device.host_copy import copy_pieces
from tiering.device.sub_blocks import IntArray

__all__ = ["HostCopyEngine"]

logger = logging.getLogger(__name__)

CopyFunction = Callable[[IntArray, IntArray, IntArray], None]

_BYTES_PER_THREAD = 8 * 2**20
"""A thread that gets less costs more to wake than it saves."""


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: int
    src_ptrs: IntArray
    dst_ptrs: IntArray
    sizes: IntArray
    memory: Sequence[object]


class HostCopyEngine(CopyEngine):
    """Threads that copy one job after another; large jobs are divided among them."""

    def __init__(
        self,
        name: str = "tiering-copy",
        copy: CopyFunction = copy_pieces,
        *,
        num_threads: int = 1,
        cpus: Set[int] | None = None,
    ) -> None:
        """Start the threads.

        Args:
            name: of the threads, for those who look at stacks.
            copy: moves pieces, on a thread; an exception makes the job a failed one.
            num_threads: one saturates the memory of a small machine.
            cpus: where the threads should run; None for where the caller may. An engine that binds its compute threads
                to some processors gives its copies the others.

        Raises:
            ValueError: ``num_threads`` is less than 1; no thread was started.
        """
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; allowed: 1 or more")
        self._copy = copy
        self._cpus = cpus
        self._queue: deque[_Job] = deque()
        self._in_progress: set[int] = set()
        self._results: list[CopyResult] = []
        self._closing = False
        # Guards the queue, the jobs in progress, the results and the closing; notified when any of them changes.
        self._changed = threading.Condition()
        self._num_threads = num_threads
        self._helpers = ThreadPoolExecutor(num_threads, name, self._move_to_cpus)  # starts no thread before its use
        # A daemon, so that an engine that was never shut down does not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self, job_id: int, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, memory: Sequence[object] = ()
    ) -> None:
        with self._changed:
            if self._closing:
                raise ValueError(f"copy job {job_id}: the copy engine has been shut down")
            self._in_progress.add(job_id)
            self._queue.append(_Job(job_id, src_ptrs, dst_ptrs, sizes, memory))
            self._changed.notify_all()

    def poll(self) -> list[CopyResult]:
        with self._changed:
            results, self._results = self._results, []
        return results

    def wait(self, job_ids: Set[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._in_progress.isdisjoint(job_ids))

    def shutdown(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._helpers.shutdown()

    def _run(self) -> None:
        self._move_to_cpus()
        while (job := self._next_job()) is not None:
            begin = time.perf_counter()
            try:
                self._copy_all(job)
                result = CopyResult(job.job_id, time.perf_counter() - begin)
            except BaseException as error:  # without this thread, every later job would wait for ever
                logger.exception("copy job %d failed", job.job_id)
                result = CopyResult(job.job_id, 0.0, f"{type(error).__name__}: {error}")
            with self._changed:
                self._in_progress.remove(job.job_id)
                self._results.append(result)
                self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        """Wait for a job; None once all are done and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue.popleft() if self._queue else None

    def _copy_all(self, job: _Job) -> None:
        """Copy a job's pieces, on as many threads as are worth it; on return or exception none of them writes."""
        ends = np.cumsum(job.sizes)
        num_bytes = int(ends[-1]) if len(ends) else 0
        num_parts = max(1, min(self._num_threads, num_bytes // _BYTES_PER_THREAD))
        cuts = 1 + np.searchsorted(ends, np.arange(1, num_parts) * (num_bytes // num_parts))
        parts = [slice(begin, end) for begin, end in pairwise(np.unique([0, *cuts, len(ends)]))] or [slice(0)]
        try:
            others = [
                self._helpers.submit(self._copy, job.src_ptrs[part], job.dst_ptrs[part], job.sizes[part])
                for part in parts[1:]
            ]
        except RuntimeError as error:
            logger.warning("copies go on with one thread: %s", error)
            self._helpers.shutdown(cancel_futures=True)  # a part that has been left to them must not be copied later
            self._num_threads = 1
            self._copy_all(job)
            return
        try:
            self._copy(job.src_ptrs[parts[0]], job.dst_ptrs[parts[0]], job.sizes[parts[0]])
        finally:
            wait(others)
        for other in others:
            other.result()

    def _move_to_cpus(self) -> None:
        if self._cpus is not None:
            try:
                os.sched_setaffinity(0, self._cpus)
            except Exception as error:
                logger.warning("copy threads cannot run on processors %s: %s", self._cpus, error)
