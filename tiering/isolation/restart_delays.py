"""When a tier's process is started again after it has ended."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RestartDelays"]


@dataclass(slots=True)
class RestartDelays:
    """Delays that double from one end of the process to the next, until it has served for a while.

    Attributes:
        first_seconds: before the first restart.
        longest_seconds: the most.
        healthy_seconds: a process that has served for so long starts the delays anew.
    """

    first_seconds: float = 0.1
    longest_seconds: float = 30.0
    healthy_seconds: float = 5.0
    _next_seconds: float = 0.0

    def after(self, served_seconds: float) -> float:
        """Return how long to wait, after the end of a process that had served for ``served_seconds``.

        Less than zero means that it has never come to serve.
        """
        if served_seconds >= self.healthy_seconds:
            self._next_seconds = 0.0
        delay = max(self._next_seconds, self.first_seconds)
        self._next_seconds = min(2 * delay, self.longest_seconds)
        return min(delay, self.longest_seconds)
