"""The few CUDA calls that copying needs, behind a seam so that their order can be proved without a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, TypeAlias

from tiering.device.sub_blocks import IntArray
from tiering.errors import TieringError

__all__ = ["CudaError", "CudaRuntime", "Direction"]

# What a runtime hands out; nobody else looks inside.
Stream: TypeAlias = Any
Event: TypeAlias = Any


class CudaError(TieringError, RuntimeError):
    """A CUDA call failed; the message names the call and CUDA's own reason."""


class Direction(Enum):
    """Which way bytes move."""

    TO_HOST = "to host"
    TO_DEVICE = "to device"


class CudaRuntime(ABC):
    """One device as copy engines use it. Called from one thread; only `synchronize` blocks.

    Every method may raise: `CudaError`, or what the library below raises.

    Attributes:
        can_batch: whether `copy_batch` works with this driver and these libraries.
        copy_method: how pieces are copied and why so, for the start-up line.
    """

    can_batch: bool
    copy_method: str

    @abstractmethod
    def new_stream(self) -> Stream:
        """Make a stream that runs beside all others."""

    @abstractmethod
    def new_event(self) -> Event:
        """Make an event that notes the time when it happens."""

    @abstractmethod
    def wait_for_compute(self, stream: Stream) -> None:
        """Let what is put on ``stream`` from now on wait for all that is on the caller's current stream now."""

    @abstractmethod
    def wait_for_event(self, stream: Stream, event: Event) -> None:
        """Let what is put on ``stream`` from now on wait for the last `record` of ``event``."""

    @abstractmethod
    def record(self, event: Event, stream: Stream) -> None:
        """Let ``event`` happen when all that is on ``stream`` now has ended."""

    @abstractmethod
    def copy_batch(
        self, stream: Stream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        """Put all pieces on ``stream`` in one call; they have no order among themselves. Host memory is pinned.

        There is at least one piece, and none crosses from one `pin` into another.
        """

    @abstractmethod
    def copy_each(
        self, stream: Stream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        """Put the pieces on ``stream`` one by one. Where it raises, the pieces before may be on the stream.

        With memory that is not pinned, the calls block for most of the copying.
        """

    @abstractmethod
    def has_happened(self, event: Event) -> bool:
        """Say whether ``event`` has happened since its last `record`."""

    @abstractmethod
    def synchronize(self, event: Event) -> None:
        """Block until ``event`` has happened."""

    @abstractmethod
    def seconds_between(self, start: Event, end: Event) -> float:
        """Return the time between two events that have happened."""

    @abstractmethod
    def pin(self, address: int, num_bytes: int) -> None:
        """Keep this memory in place and let the device reach it directly. It must not overlap what is pinned."""

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Undo the `pin` that began at ``address``; no copy may use it any more."""
