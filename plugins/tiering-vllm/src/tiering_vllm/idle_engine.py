"""An engine with nothing to compute polls as fast as it can, and so keeps the interpreter from those it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["IdleEngine"]

_IDLE_STEP_SECONDS = 1e-3
"""No step that computes anything is as short."""

_PAUSE_SECONDS = 0.5e-3


class IdleEngine:
    """Makes short pauses in steps that compute nothing while a tier works, for tiers run on threads of the engine.

    Scheduler thread only. A step that computes is never held up.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._step_ended = float("-inf")

    def end_step(self, *, tiers_work: bool) -> None:
        """Note the end of a step; pause if it was an empty one and ``tiers_work``."""
        if tiers_work and self._clock() - self._step_ended < _IDLE_STEP_SECONDS:
            self._sleep(_PAUSE_SECONDS)
        self._step_ended = self._clock()
