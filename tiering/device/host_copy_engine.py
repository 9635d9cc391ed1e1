"""Copies within host memory, on a thread of its own."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass

from tiering.device.copy_engine import CopyEngine, CopyResult
from tiering.device.sub_blocks import IntArray

__all__ = ["HostCopyEngine", "copy_pieces"]

logger = logging.getLogger(__name__)

CopyFunction = Callable[[IntArray, IntArray, IntArray], None]


def copy_pieces(src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
    """Copy all pieces; other Python threads run meanwhile, because ctypes gives the interpreter lock away."""
    for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(dst, src, size)


@dataclass(frozen=True, slots=True)
class _Job:
    job_id: int
    src_ptrs: IntArray
    dst_ptrs: IntArray
    sizes: IntArray


class HostCopyEngine(CopyEngine):
    """A thread that copies; one thread saturates the memory of a small machine, so each direction has one."""

    def __init__(self, name: str = "tiering-copy", copy: CopyFunction = copy_pieces) -> None:
        """Start the thread.

        Args:
            name: of the thread, for those who look at stacks.
            copy: moves the pieces of one job, on the thread; an exception makes the job a failed one.
        """
        self._copy = copy
        self._queue: deque[_Job] = deque()
        self._in_progress: set[int] = set()
        self._results: list[CopyResult] = []
        self._closing = False
        # Guards the four fields above; notified when any of them changes.
        self._changed = threading.Condition()
        # A daemon, so that an engine that was never shut down does not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job_id: int, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
        with self._changed:
            if self._closing:
                raise ValueError(f"copy job {job_id}: the copy engine has been shut down")
            self._in_progress.add(job_id)
            self._queue.append(_Job(job_id, src_ptrs, dst_ptrs, sizes))
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

    def _run(self) -> None:
        while (job := self._next_job()) is not None:
            begin = time.perf_counter()
            try:
                self._copy(job.src_ptrs, job.dst_ptrs, job.sizes)
                success = True
            except Exception:
                logger.exception("copy job %d failed", job.job_id)
                success = False
            result = CopyResult(job.job_id, success, time.perf_counter() - begin)
            with self._changed:
                self._in_progress.remove(job.job_id)
                self._results.append(result)
                self._changed.notify_all()

    def _next_job(self) -> _Job | None:
        """Wait for a job; None once all are done and no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            return self._queue.popleft() if self._queue else None
