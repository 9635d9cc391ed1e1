"""A CUDA device without CUDA: streams that run when the test lets them, in the worst order that is allowed."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tiering.device.cuda_runtime import CudaError, CudaRuntime, Direction
from tiering.device.sub_blocks import IntArray

__all__ = ["FakeCudaRuntime", "FakeEvent", "FakeStream"]


@dataclass(slots=True)
class _Mark:
    """One record of an event: a wait for it is a wait for this record, whatever the event is used for later."""

    happened_at: int | None = None


@dataclass(eq=False, slots=True)
class FakeEvent:
    """An event by its number, in the order made."""

    number: int
    mark: _Mark | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    action: Callable[[], object]
    after: _Mark | None = None


@dataclass(eq=False, slots=True)
class FakeStream:
    """A stream by its number, in the order made; 0 is the compute stream."""

    number: int
    steps: deque[_Step] = field(default_factory=deque)


class FakeCudaRuntime(CudaRuntime):
    """Host memory as a device. Nothing moves until `advance`, `synchronize`, or the end of an event is waited for.

    Of the streams that may go on, the one made last goes first and the compute stream goes last: a copy that does not
    wait for what it needs is seen to copy too early, every time.

    Attributes:
        calls: what was asked for, in order: ``"wait_for_compute stream 1"``, ``"record event 2 on stream 1"``.
        pinned: length by address.
    """

    def __init__(self, *, can_batch: bool = True) -> None:
        self.can_batch = can_batch
        self.copy_method = "fake batch" if can_batch else "fake copies one by one"
        self.calls: list[str] = []
        self.pinned: dict[int, int] = {}
        self.compute = FakeStream(0)
        self._streams = [self.compute]
        self._num_events = 0
        self._clock = 0
        self._failures: dict[str, int] = {}

    def fail(self, call: str, after: int = 0) -> None:
        """Let ``call`` (a method, or ``"piece"`` for one of `copy_each`) fail once, after so many that succeed."""
        self._failures[call] = after

    def on_compute(self, kernel: Callable[[], object]) -> None:
        """Queue a kernel on the compute stream."""
        self.compute.steps.append(_Step(kernel))

    def advance(self, num_steps: int | None = None) -> int:
        """Run so many steps, or all that can run; return how many did."""
        done = 0
        while (num_steps is None or done < num_steps) and self._step():
            done += 1
        return done

    def new_stream(self) -> FakeStream:
        self._call("new_stream")
        self._streams.append(FakeStream(len(self._streams)))
        return self._streams[-1]

    def new_event(self) -> FakeEvent:
        self._call("new_event")
        self._num_events += 1
        return FakeEvent(self._num_events)

    def wait_for_compute(self, stream: FakeStream) -> None:
        self._call("wait_for_compute", f"stream {stream.number}")
        mark = _Mark()
        self._append(self.compute, mark)
        stream.steps.append(_Step(_nothing, after=mark))

    def wait_for_event(self, stream: FakeStream, event: FakeEvent) -> None:
        self._call("wait_for_event", f"{event.number} on stream {stream.number}")
        if event.mark is not None:
            stream.steps.append(_Step(_nothing, after=event.mark))

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        self._call("record", f"event {event.number} on stream {stream.number}")
        event.mark = _Mark()
        self._append(stream, event.mark)

    def copy_batch(
        self, stream: FakeStream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        self._call("copy_batch", f"of {len(sizes)} {direction.value} on stream {stream.number}")
        host_ptrs = dst_ptrs if direction is Direction.TO_HOST else src_ptrs
        for address, size in zip(host_ptrs.tolist(), sizes.tolist(), strict=True):
            if not any(begin <= address and address + size <= begin + n for begin, n in self.pinned.items()):
                raise CudaError(f"{size} bytes at {address:#x} do not lie in one pinned range")
        for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
            stream.steps.append(_Step(partial(ctypes.memmove, dst, src, size)))

    def copy_each(
        self, stream: FakeStream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        self._call("copy_each", f"of {len(sizes)} {direction.value} on stream {stream.number}")
        for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
            self._fail_if_told("piece")
            stream.steps.append(_Step(partial(ctypes.memmove, dst, src, size)))

    def has_happened(self, event: FakeEvent) -> bool:
        self._fail_if_told("has_happened")
        return event.mark is None or event.mark.happened_at is not None

    def synchronize(self, event: FakeEvent) -> None:
        self._call("synchronize", f"event {event.number}")
        while event.mark is not None and event.mark.happened_at is None:
            if not self._step():
                raise CudaError(f"event {event.number} can never happen")

    def seconds_between(self, start: FakeEvent, end: FakeEvent) -> float:
        self._fail_if_told("seconds_between")
        if start.mark is None or end.mark is None or start.mark.happened_at is None or end.mark.happened_at is None:
            raise CudaError(f"events {start.number} and {end.number} have not both happened")
        return (end.mark.happened_at - start.mark.happened_at) / 1000

    def pin(self, address: int, num_bytes: int) -> None:
        self._call("pin", f"{num_bytes} bytes")
        if address == 0:
            raise CudaError("there is no memory at address 0")
        if any(begin < address + num_bytes and address < begin + n for begin, n in self.pinned.items()):
            raise CudaError(f"memory at {address:#x} is already pinned")
        self.pinned[address] = num_bytes

    def unpin(self, address: int) -> None:
        self._call("unpin")
        if address not in self.pinned:
            raise CudaError(f"no pinned range begins at {address:#x}")
        del self.pinned[address]

    def _call(self, name: str, what: str = "") -> None:
        self.calls.append(f"{name} {what}".strip())
        self._fail_if_told(name)

    def _fail_if_told(self, call: str) -> None:
        left = self._failures.get(call)
        if left is not None:
            self._failures[call] = left - 1
            if left == 0:
                del self._failures[call]
                raise CudaError(f"{call}: told to fail")

    def _append(self, stream: FakeStream, mark: _Mark) -> None:
        def happen() -> None:
            mark.happened_at = self._clock

        stream.steps.append(_Step(happen))

    def _step(self) -> bool:
        for stream in reversed(self._streams):
            step = stream.steps[0] if stream.steps else None
            if step is not None and (step.after is None or step.after.happened_at is not None):
                stream.steps.popleft()
                self._clock += 1
                step.action()
                return True
        return False


def _nothing() -> None:
    pass
