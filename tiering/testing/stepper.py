"""I/O in the order that a test says: each call of a tier waits until the test lets it run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tiering.keys import OffloadKey
from tiering.testing.tier_wrapper import TierWrapper
from tiering.tier import Tier

__all__ = ["Step", "SteppedTier", "Stepper"]


class Step:
    """One call of a tier that waits, or has waited, for its turn.

    Attributes:
        method: ``lookup``, ``store`` or ``load``.
        keys: what it is about.
    """

    def __init__(self, method: str, keys: Sequence[OffloadKey]) -> None:
        self.method = method
        self.keys = tuple(keys)
        self.loop = asyncio.get_running_loop()
        self.turn = asyncio.Event()
        self.has_ended = threading.Event()

    def __repr__(self) -> str:
        return f"{self.method} of {len(self.keys)} chunks"


class Stepper:
    """Holds the calls of all tiers that it wraps, and runs them one at a time. For the test's thread."""

    def __init__(self, timeout_seconds: float = 10.0) -> None:
        """Every wait below ends after ``timeout_seconds`` in a TimeoutError that says what is waiting."""
        self._timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._waiting: list[Step] = []
        self._is_free = False

    def wrap(self, tier: Tier) -> SteppedTier:
        """Return ``tier`` with its calls held."""
        return SteppedTier(tier, self)

    def wait_for(self, num_steps: int, method: str | None = None) -> list[Step]:
        """Return the steps that wait (of one method), in the order in which they came, once there are so many."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._of(method)) >= num_steps, self._timeout_seconds):
                raise TimeoutError(f"{num_steps} calls of {method or 'any method'} expected; waiting: {self._waiting}")
            return self._of(method)

    def run(self, step: Step) -> None:
        """Let a step run, alone, and wait until it has ended and its result is there to be polled."""
        with self._changed:
            self._waiting.remove(step)
        step.loop.call_soon_threadsafe(step.turn.set)
        if not step.has_ended.wait(self._timeout_seconds):
            raise TimeoutError(f"{step!r} has not ended")

    def run_first(self, method: str | None = None) -> Step:
        """Run the first step (of one method), waiting for it to come."""
        step = self.wait_for(1, method)[0]
        self.run(step)
        return step

    def free(self) -> None:
        """Hold nothing any more."""
        with self._changed:
            self._is_free = True
            waiting, self._waiting = self._waiting, []
        for step in waiting:
            step.loop.call_soon_threadsafe(step.turn.set)

    async def take_turn(self, method: str, keys: Sequence[OffloadKey], call: Callable[[], Awaitable[Any]]) -> Any:
        """Run ``call`` when the test says so. On the tier's loop thread."""
        step = Step(method, keys)
        with self._changed:
            if self._is_free:
                step.turn.set()
            else:
                self._waiting.append(step)
                self._changed.notify_all()
        await step.turn.wait()
        try:
            return await call()
        finally:
            # Not before the caller has taken the result, which it does without another wait.
            step.loop.call_soon(step.has_ended.set)

    def _of(self, method: str | None) -> list[Step]:
        return [step for step in self._waiting if method in (None, step.method)]


class SteppedTier(TierWrapper):
    """A tier whose lookups, stores and loads wait for a `Stepper`."""

    def __init__(self, inner: Tier, stepper: Stepper) -> None:
        super().__init__(inner)
        self._stepper = stepper

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        answers: list[bool] = await self._stepper.take_turn("lookup", keys, lambda: self.inner.lookup(keys))
        return answers

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        answers: list[bool] = await self._stepper.take_turn("store", keys, lambda: self.inner.store(keys, rows))
        return answers

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        answers: list[bool] = await self._stepper.take_turn("load", keys, lambda: self.inner.load(keys, rows))
        return answers
