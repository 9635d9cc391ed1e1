"""The circuit breaker of a tier: after repeated failures it is left alone, then tried with one job at a time."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum

from tiering.tier import BreakerConfig

__all__ = ["Breaker", "BreakerState"]

logger = logging.getLogger(__name__)

_SECONDS_PER_HOUR = 3600.0


class BreakerState(Enum):
    """What a tier may be asked to do."""

    CLOSED = "closed"
    """Everything."""
    HALF_OPEN = "half_open"
    """One job, whose end decides."""
    OPEN = "open"
    """Nothing."""


class Breaker:
    """Counts how a tier's jobs end and decides whether it gets any.

    Opens when, among the last ``window`` ends, at least ``min_failures`` and at least ``failure_ratio`` were failures.
    After ``open_for``, which doubles with every failed try up to ``max_open_for``, one job is let through: a success
    closes the breaker, a failure opens it again. Nobody has to restart anything.

    Attributes:
        state: the state, up to date since the last `allows`.
        num_opened: how often it has opened.
    """

    def __init__(self, name: str, config: BreakerConfig, clock: Callable[[], float]) -> None:
        self.state = BreakerState.CLOSED
        self.num_opened = 0
        self._name = name
        self._config = config
        self._clock = clock
        self._failures: deque[bool] = deque(maxlen=config.window)
        self._open_seconds = config.open_for
        self._opened_at = 0.0
        self._is_trying = False
        self._num_corrupt = 0
        self._corrupt_since = 0.0

    def allows(self) -> bool:
        """Whether the tier may be given work now. Cheap while the breaker is closed."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and self._clock() >= self._opened_at + self._open_seconds:
            self._become(BreakerState.HALF_OPEN)
        return self.state is BreakerState.HALF_OPEN and not self._is_trying

    def started(self) -> None:
        """A job was handed over; while half open it is the only one."""
        self._is_trying = self.state is BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        """A job has ended in time and without a fault."""
        self._is_trying = False
        self._failures.append(False)
        if self.state is BreakerState.HALF_OPEN:
            self._failures.clear()
            self._open_seconds = self._config.open_for
            self._become(BreakerState.CLOSED)

    def failed(self) -> None:
        """A job has ended in a fault, or has not ended in time."""
        self._is_trying = False
        self._failures.append(True)
        if self.state is BreakerState.HALF_OPEN:
            self._open_seconds = min(2 * self._open_seconds, self._config.max_open_for)
            self._open()
        elif self.state is BreakerState.CLOSED:
            enough = max(self._config.min_failures, self._config.failure_ratio * len(self._failures))
            if sum(self._failures) >= enough:
                self._open()

    def corrupt(self, num_chunks: int) -> None:
        """Chunks came back with wrong bytes and were dropped. Too many of them within an hour quarantine the tier."""
        now = self._clock()
        if now >= self._corrupt_since + _SECONDS_PER_HOUR:
            self._num_corrupt, self._corrupt_since = 0, now
        self._num_corrupt += num_chunks
        if self._num_corrupt >= self._config.max_corrupt:
            self._num_corrupt = 0
            self._open_seconds = self._config.quarantine_for
            self._open()

    def _open(self) -> None:
        self.num_opened += 1
        self._opened_at = self._clock()
        self._become(BreakerState.OPEN)

    def _become(self, state: BreakerState) -> None:
        log = logger.info if state is BreakerState.HALF_OPEN else logger.warning
        log("tier %s: breaker %s -> %s", self._name, self.state.value, state.value)
        self.state = state
