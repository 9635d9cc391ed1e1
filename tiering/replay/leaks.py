"""What must be left over when no request runs any more: nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["find_leaks"]

_ZERO_WHEN_QUIET = (
    "stores_open",
    "requests",
    "requests_remembered",
    "rows_promoting",
    "rows_held",
    "completions_unexpected",
)


def find_leaks(stats: Mapping[str, Any], num_busy_rows: int) -> list[str]:
    """Name everything in a quiet manager's statistics that should be zero, or add up, and does not."""
    leaks = [f"{name} is {stats[name]}" for name in _ZERO_WHEN_QUIET if stats[name]]
    if stats["rows_free"] + stats["chunks"] != stats["rows"]:
        leaks.append(f"{stats['rows_free']} free rows and {stats['chunks']} chunks are not {stats['rows']} rows")
    if num_busy_rows:
        leaks.append(f"{num_busy_rows} rows are still pinned or being written")
    for name, tier in stats["tiers"].items():
        if tier["jobs_in_flight"]:
            leaks.append(f"tier {name} has {tier['jobs_in_flight']} jobs in flight")
    return leaks
