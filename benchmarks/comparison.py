"""What a benchmark finds, and how it is measured: two ways of doing the same work, in turn, by their medians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Comparison", "Scale", "WrongResultError", "alternate", "check"]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done.

    Attributes:
        rounds: how often each side is measured, after one round that does not count.
        num_rows: sizes of the manager.
        moved_bytes: bytes per round, where bytes are moved.
        directory: where files are made.
    """

    rounds: int
    num_rows: tuple[int, ...]
    moved_bytes: int
    directory: Path


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line of the table.

    Attributes:
        case: what was done.
        other: what it is compared with.
        unit: of the next two.
        ours, others: medians.
        times_as_long: our time over the other's; less is better.
        cpu_seconds_per_gb: of this process, all threads, where bytes were moved on several.
    """

    case: str
    other: str
    unit: str
    ours: float
    others: float
    times_as_long: float
    cpu_seconds_per_gb: float | None = None

    @classmethod
    def per_key(cls, case: str, other: str, seconds: float, other_seconds: float) -> Comparison:
        """Compare durations per key, in nanoseconds."""
        return cls(case, other, "ns/key", seconds * 1e9, other_seconds * 1e9, seconds / other_seconds)

    @classmethod
    def per_byte(
        cls,
        case: str,
        other: str,
        num_bytes: int,
        seconds: float,
        other_seconds: float,
        *,
        cpu_seconds: float | None = None,
    ) -> Comparison:
        """Compare durations of moving ``num_bytes``, in 10**9 bytes per second."""
        gigabytes = num_bytes / 1e9
        return cls(
            case,
            other,
            "GB/s",
            gigabytes / seconds,
            gigabytes / other_seconds,
            seconds / other_seconds,
            None if cpu_seconds is None else cpu_seconds / gigabytes,
        )


def alternate(rounds: int, *sides: Callable[[], float]) -> list[float]:
    """Call the sides in turn, so that a slow moment of the machine falls on each, and return the median of each.

    Each returns what it has measured; the first round, in which memory and files are new, does not count.
    """
    measured = [[side() for side in sides] for _ in range(1 + rounds)]
    return [median(column) for column in zip(*measured[1:], strict=True)]


class WrongResultError(Exception):
    """What was measured did not do its work."""


def check(is_right: bool, what: str) -> None:
    """Stop unless the work was really done: a wrong result has no speed."""
    if not is_right:
        raise WrongResultError(what)
