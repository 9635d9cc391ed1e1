"""Warnings about what fails again and again: a line per kind and interval, not one per failure."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Complaints"]

_logger = logging.getLogger(__name__)
_INTERVAL_SECONDS = 60.0


class Complaints:
    """Logs the first failure of a kind at once, and those of the next minute as a number in the line after it."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._num_unsaid: dict[str, int] = {}

    def say(self, kind: str, message: str, count: int = 1) -> None:
        """Warn about ``count`` failures of a kind; ``message`` is about the last of them."""
        now = self._clock()
        if now < self._silent_until.get(kind, now):
            self._num_unsaid[kind] = self._num_unsaid.get(kind, 0) + count
            return
        self._silent_until[kind] = now + _INTERVAL_SECONDS
        unsaid = self._num_unsaid.pop(kind, 0)
        more = f" (and {unsaid} more since the last such line)" if unsaid else ""
        _logger.warning("disk tier %r: %s: %s%s", self._name, kind, message, more)
