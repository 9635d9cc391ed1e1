"""What the soak has found, and how it is shown."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from benchmarks.soak_engine import TIMED_CALLS
from tiering.quantities import format_bytes

__all__ = ["Phase", "Report"]


@dataclass(frozen=True, slots=True)
class Phase:
    """What happened while one fault was on, or while none was.

    Attributes:
        name: which fault.
        seconds: how long it lasted.
        requests, hit_rate: served, and the share of their chunks that were loaded.
        hits: loaded chunks, by the tier they came from.
        faults: how often the fault has happened.
        rss_bytes: the engine's memory at the end.
    """

    name: str
    seconds: float
    requests: int
    hit_rate: float
    hits: Counter[str]
    faults: int
    rss_bytes: int


def _no_calls() -> dict[str, Counter[int]]:
    return {name: Counter() for name in TIMED_CALLS}


@dataclass(slots=True)
class Report:
    """Attributes:
    phases: in order.
    call_microseconds: how often each call of the scheduler has taken how long.
    lines: further things to know.
    problems: promises that were broken; empty if all is well.
    """

    phases: list[Phase] = field(default_factory=list)
    call_microseconds: dict[str, Counter[int]] = field(default_factory=_no_calls)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        """Print all of it; the last lines say what is wrong."""
        console.print(_phases(self.phases))
        console.print()
        console.print(_calls(self.call_microseconds))
        console.print()
        for line in self.lines:
            console.print(line, soft_wrap=True, highlight=False)
        for problem in self.problems or ["none"]:
            console.print(f"broken promise: {problem}", soft_wrap=True, highlight=False)


def _table(first: str, others: Iterable[str]) -> Table:
    table = Table(first, box=None, header_style="bold", pad_edge=False)
    for column in others:
        table.add_column(column, justify="right")
    return table


def _phases(phases: Iterable[Phase]) -> Table:
    tiers = ("cpu", "soak_memory", "disk", "isolated", "s3")
    table = _table("phase", ("seconds", "requests", "hit rate", *tiers, "faults", "memory"))
    for phase in phases:
        table.add_row(
            phase.name,
            f"{phase.seconds:.1f}",
            f"{phase.requests:,}",
            f"{phase.hit_rate:.1%}",
            *(f"{phase.hits[tier]:,}" for tier in tiers),
            f"{phase.faults:,}",
            format_bytes(phase.rss_bytes),
        )
    return table


def _calls(call_microseconds: dict[str, Counter[int]]) -> Table:
    table = _table("scheduler call", ("calls", "p50 us", "p99 us", "p99.9 us", "max us"))
    everything = sum(call_microseconds.values(), Counter[int]())
    for name, durations in {**call_microseconds, "all": everything}.items():
        found = [_quantile(durations, share) for share in (0.5, 0.99, 0.999, 1.0)]
        table.add_row(name, f"{durations.total():,}", *(f"{us:,}" for us in found))
    return table


def _quantile(microseconds: Counter[int], share: float) -> int:
    """Return the duration below which this share of the calls lay."""
    ordered = sorted(microseconds)
    running = itertools.accumulate(microseconds[us] for us in ordered)
    wanted = share * microseconds.total()
    return next((us for us, below in zip(ordered, running, strict=True) if below >= wanted), 0)
