"""What a worker asks of whoever moves bytes in one direction (seed, chapter 9.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass

from tiering.transfer_specs import TransferSpec, TransferType

__all__ = ["OffloadingHandler", "TransferResult"]


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The end of one transfer.

    Attributes:
        job_id: the transfer.
        success: whether all bytes arrived; if not, the destination may hold any mixture.
        transfer_size: bytes it was asked to move.
        transfer_time: seconds of moving.
        transfer_type: (source medium, destination medium).
        error: why it failed, or None.
    """

    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
    transfer_type: TransferType | None = None
    error: str | None = None


class OffloadingHandler(ABC):
    """Moves blocks from one medium to another in the background. Called from the worker's main thread only."""

    @abstractmethod
    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Start a transfer and return at once; False, or an exception, means that nothing was started.

        Source and destination belong to the transfer until its result is there.
        """

    @abstractmethod
    def get_finished(self) -> list[TransferResult]:
        """Return the results since the last call, in the order started; each transfer has exactly one."""

    @abstractmethod
    def wait(self, job_ids: Set[int]) -> None:
        """Block until each of these transfers has ended and nothing reads or writes its memory any more.

        Ids that are not in progress here count as ended; results are still fetched by `get_finished`.
        """

    def shutdown(self) -> None:
        """Block until all transfers have ended, then give everything back. Later calls do nothing."""
