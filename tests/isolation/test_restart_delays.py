from __future__ import annotations

from tiering.isolation import RestartDelays


def test_they_double_until_the_process_has_served_for_a_while() -> None:
    delays = RestartDelays(first_seconds=1.0, longest_seconds=5.0, healthy_seconds=10.0)
    assert [delays.after(served) for served in (60.0, 0.0, 9.9, 0.0, 0.0)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert [delays.after(served) for served in (10.0, 0.0)] == [1.0, 2.0]
    assert delays.after(float("-inf")) == 4.0, "it has never served"


def test_no_delay_stays_none() -> None:
    delays = RestartDelays(0.0, 0.0)
    assert [delays.after(0.0) for _ in range(3)] == [0.0] * 3
