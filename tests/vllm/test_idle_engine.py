"""Pauses are made in empty steps only, and only while a tier works."""

from __future__ import annotations

from tiering_vllm.idle_engine import IdleEngine


class Time:
    """A clock that pauses move, too."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_an_engine_that_polls_gives_way_and_one_that_computes_does_not() -> None:
    time = Time()
    engine = IdleEngine(lambda: time.now, time.sleep)
    for step_seconds, tiers_work, expected in [
        (0.0, True, 0),  # the first step may have been a long one
        (0.0003, True, 1),
        (0.0003, True, 2),
        (0.0003, False, 2),
        (0.02, True, 2),
        (0.0003, True, 3),
    ]:
        time.now += step_seconds
        engine.end_step(tiers_work=tiers_work)
        assert len(time.pauses) == expected
    assert max(time.pauses) <= 0.001
