"""The seam between planning a transfer and moving its bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence, Set
from dataclasses import dataclass

from tiering.device.sub_blocks import IntArray

__all__ = ["CopyEngine", "CopyResult"]


@dataclass(frozen=True, slots=True)
class CopyResult:
    """The end of one copy job.

    Attributes:
        job_id: the job.
        seconds: how long the copying took, waiting excluded; 0 where it failed.
        error: why it failed, or None where all of its bytes were copied. After a failure the destination may hold any
            mixture, but nothing writes into it any more.
    """

    job_id: int
    seconds: float
    error: str | None = None


class CopyEngine(ABC):
    """Copies batches of pieces between two kinds of memory, one job after another in the order submitted.

    The methods are called from one thread and never block, except `wait` and `shutdown`. The destination stays nobody
    else's until the job's result is there. Every job has exactly one result.
    """

    @abstractmethod
    def submit(
        self, job_id: int, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, memory: Sequence[object] = ()
    ) -> None:
        """Queue the copy of ``sizes[i]`` bytes from ``src_ptrs[i]`` to ``dst_ptrs[i]`` for all i.

        Args:
            job_id: differs from all jobs whose result has not been polled yet.
            src_ptrs, dst_ptrs, sizes: int64 of shape ``(num_pieces,)``; may be empty.
            memory: the objects that own the memory; kept alive until the job has ended, also where everybody else has
                dropped them and the engine.

        Raises:
            ValueError: the engine was shut down; nothing is queued.
        """

    @abstractmethod
    def poll(self) -> list[CopyResult]:
        """Return the results since the last call, in the order submitted."""

    @abstractmethod
    def wait(self, job_ids: Set[int]) -> None:
        """Block until each of these jobs has ended; ids that are not in progress count as ended."""

    @abstractmethod
    def shutdown(self) -> None:
        """Block until all jobs have ended and give everything back; `poll` still answers. Later calls do nothing."""
