"""Trying again after failures that may pass: with growing, jittered pauses, up to a deadline, within a budget."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tiering.errors import TemporaryTierError
from tiers.s3.config import RetryConfig
from tiers.s3.counters import ObjectCounters

__all__ = ["Retries"]

R = TypeVar("R")

_BACK_PER_SUCCESS = 0.1


class Retries:
    """Runs operations of one tier until they succeed or trying again makes no sense. Loop thread only.

    Another try begins only when the one before it has ended.
    """

    def __init__(
        self,
        config: RetryConfig,
        counters: ObjectCounters,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """``jitter`` returns numbers from 0 to 1; 1 makes a pause as long as it may be, 0 half as long."""
        self._config = config
        self._counters = counters
        self._sleep = sleep
        self._jitter = jitter
        self._budget = float(config.budget)

    async def run(self, attempt: Callable[[], Awaitable[R]], deadline: float) -> R:
        """Return what ``attempt`` returns.

        Args:
            attempt: the operation; called once per try.
            deadline: in the time of the running loop; no pause goes beyond it.

        Raises:
            TemporaryTierError: as the last try raised it.
            Exception: whatever else a try raised, at once.
        """
        clock = asyncio.get_running_loop().time
        number = 0
        while True:
            number += 1
            try:
                result = await attempt()
            except TemporaryTierError:
                pause = self._pause_after(number)
                if number >= self._config.attempts or clock() + pause >= deadline or self._budget < 1:
                    raise
                self._budget -= 1
                self._counters.retries += 1
                await self._sleep(pause)
            else:
                self._budget = min(self._budget + _BACK_PER_SUCCESS, self._config.budget)
                return result

    def _pause_after(self, number: int) -> float:
        longest = min(self._config.max_delay, self._config.first_delay * 2 ** (number - 1))
        return float(longest * (0.5 + 0.5 * self._jitter()))
