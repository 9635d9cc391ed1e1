"""Which call of a tier goes wrong in which way: drawn from a seed, the same in every run."""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CONTAINED_FAULTS", "Fault", "FaultSchedule"]


class Fault(enum.Enum):
    """What may go wrong in one call of lookup, store or load."""

    DELAY = "the answer takes a while"
    DROP = "nothing is done, and the answer is no for every key"
    PARTIAL = "a part is done; rows of the rest are filled half"
    MISCOUNT = "all is done, with an answer too few, one too many, or none at all"
    NO_SPACE = "OSError(ENOSPC)"
    RAISE = "an Exception of some kind, after a part was done"
    RAISE_BASE = "a BaseException of some kind, such as SystemExit"
    STUCK = "nothing happens until it is released"
    LATE_WRITE = "a load has its bytes at once and writes them into the rows only when it is released"
    FLIP = "one bit of what is stored or loaded is wrong, and the answer is yes"
    WRITE_OUTSIDE = "a load writes one byte behind each of its rows"
    CRASH = "the process is killed in the middle of the call"


CONTAINED_FAULTS: tuple[Fault, ...] = tuple(
    fault for fault in Fault if fault not in (Fault.FLIP, Fault.WRITE_OUTSIDE, Fault.CRASH)
)
"""The faults that cost misses only, whatever tier they happen in.

Of the others, `FLIP` is seen by a checksum above it, `WRITE_OUTSIDE` by guards between rows, and after `CRASH` the next
process finds each chunk whole or not at all.
"""


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Decides by the number of a call, counted from 0, and nothing else.

    Attributes:
        seed: the same seed makes the same faults.
        rates: per fault, the share of the calls that it happens to; together 1 at most.
        at: faults of certain calls, by number; before ``rates``.
        delay_seconds: how long a `Fault.DELAY` takes at most.
        stuck_seconds: after which time what is stuck or late goes on without being released.
    """

    seed: int = 0
    rates: Mapping[Fault, float] = field(default_factory=dict)
    at: Mapping[int, Fault] = field(default_factory=dict)
    delay_seconds: float = 0.01
    stuck_seconds: float = math.inf

    @classmethod
    def of_everything(
        cls, seed: int, share: float, *, delay_seconds: float = 0.01, stuck_seconds: float = math.inf
    ) -> FaultSchedule:
        """All of `CONTAINED_FAULTS`, equally often, in this share of the calls."""
        rates: dict[Fault, float] = {fault: share / len(CONTAINED_FAULTS) for fault in CONTAINED_FAULTS}
        return cls(seed, rates, delay_seconds=delay_seconds, stuck_seconds=stuck_seconds)

    def fault_of(self, call_number: int) -> Fault | None:
        """Return what goes wrong in a call; None for nothing."""
        if call_number in self.at:
            return self.at[call_number]
        drawn = self.random_of(call_number).random()
        for fault, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                return fault
        return None

    def random_of(self, call_number: int) -> random.Random:
        """Return the generator for the details of a call's fault."""
        return random.Random(f"{self.seed} {call_number}")
