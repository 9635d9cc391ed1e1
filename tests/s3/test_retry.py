"""When an operation is tried again, and how long is waited before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tiering.errors import PermanentTierError, TemporaryTierError
from tiers.s3.config import RetryConfig
from tiers.s3.counters import ObjectCounters
from tiers.s3.retry import Retries

FAR = float("inf")


class Trial:
    """An operation that fails as often as told, and pauses that take no time."""

    def __init__(self, num_failures: int, *, jitter: float = 1.0, **settings: object) -> None:
        self.num_failures = num_failures
        self.num_tries = 0
        self.pauses: list[float] = []
        self.counters = ObjectCounters()
        self.retries = Retries(
            RetryConfig.model_validate(settings), self.counters, sleep=self._pause, jitter=lambda: jitter
        )

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def attempt(self) -> str:
        self.num_tries += 1
        if self.num_tries <= self.num_failures:
            raise TemporaryTierError(f"try {self.num_tries}")
        return "done"

    def run(self, deadline: float = FAR) -> str:
        return asyncio.run(self.retries.run(self.attempt, deadline))


def test_pauses_double_up_to_the_longest() -> None:
    trial = Trial(6, attempts=7, first_delay="100ms", max_delay="1s")
    assert trial.run() == "done"
    assert trial.pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert trial.counters.retries == 6


def test_jitter_takes_away_up_to_half() -> None:
    trial = Trial(3, jitter=0.0, attempts=4, first_delay="100ms", max_delay="1s")
    trial.run()
    assert trial.pauses == [0.05, 0.1, 0.2]
    with_real_jitter = Retries(RetryConfig(), ObjectCounters())
    pauses = {with_real_jitter._pause_after(1) for _ in range(50)}
    assert len(pauses) > 10
    assert all(0.05 <= pause <= 0.1 for pause in pauses)


def test_the_last_failure_is_raised() -> None:
    trial = Trial(99, attempts=3)
    with pytest.raises(TemporaryTierError, match="try 3"):
        trial.run()
    assert len(trial.pauses) == 2


def test_no_pause_goes_beyond_the_deadline() -> None:
    async def scenario(trial: Trial) -> str:
        return await trial.retries.run(trial.attempt, asyncio.get_running_loop().time() + 50)

    trial = Trial(99, attempts=9, first_delay="30s", max_delay="60s")
    with pytest.raises(TemporaryTierError, match="try 2"):
        asyncio.run(scenario(trial))
    assert trial.pauses == [30.0]


def test_other_errors_are_raised_at_once() -> None:
    trial = Trial(0)

    def failing(error: Exception) -> Callable[[], Awaitable[None]]:
        async def attempt() -> None:
            trial.num_tries += 1
            raise error

        return attempt

    for error in (PermanentTierError("no"), ValueError("a defect")):
        with pytest.raises(type(error)):
            asyncio.run(trial.retries.run(failing(error), FAR))
    assert trial.num_tries == 2


def test_a_budget_that_is_used_up_comes_back_by_successes() -> None:
    trial = Trial(10**9, attempts=5, budget=6)
    for tries in (5, 3, 1, 1):
        trial.num_tries = 0
        with pytest.raises(TemporaryTierError):
            trial.run()
        assert trial.num_tries == tries
    trial.num_failures = 0
    for _ in range(11):
        trial.run()
    trial.num_failures = 10**9
    trial.num_tries = 0
    with pytest.raises(TemporaryTierError):
        trial.run()
    assert trial.num_tries == 2
