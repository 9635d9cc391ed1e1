"""Steps without an engine."""

from __future__ import annotations

import time

from tiering.offloading_manager import OffloadingManager

__all__ = ["drain"]

_SECONDS_BETWEEN_STEPS = 50e-6


def drain(manager: OffloadingManager, timeout_seconds: float = 10.0) -> int:
    """End steps until the manager has no pending work; at least one. Returns how many.

    What waits for somebody else than the tiers, such as an open store of an engine, is no pending work. Call it on
    the thread that plays the scheduler.

    Raises:
        TimeoutError: there is still work after ``timeout_seconds``; it goes on.
    """
    deadline = time.monotonic() + timeout_seconds
    num_steps = 1
    manager.on_schedule_end()
    while manager.has_pending_work():
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"the manager still has pending work after {timeout_seconds:g} s and {num_steps} steps: "
                f"{dict(manager.get_stats())}"
            )
        time.sleep(_SECONDS_BETWEEN_STEPS)  # lets the tiers' threads have the interpreter
        manager.on_schedule_end()
        num_steps += 1
    return num_steps
