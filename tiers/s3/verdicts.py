"""What is believed about which chunks the store has, and for how long."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from tiering.keys import OffloadKey
from tiers.s3.config import VerdictsConfig

__all__ = ["Verdict", "Verdicts"]


class Verdict(Enum):
    """What was last seen of an object."""

    PRESENT = "present"
    ABSENT = "absent"
    SPOILT = "spoilt"
    """It is there and no load can use it; the next store must replace it."""


class _Entry(NamedTuple):
    verdict: Verdict
    since: float
    order: int


class Verdicts:
    """A bounded memory of verdicts that expire. A verdict never replaces one that was begun later. Loop thread only."""

    def __init__(self, config: VerdictsConfig, clock: Callable[[], float]) -> None:
        self._ttl = {
            Verdict.PRESENT: config.positive_ttl,
            Verdict.ABSENT: config.negative_ttl,
            Verdict.SPOILT: config.positive_ttl,
        }
        self._max_entries = config.max_entries
        self._clock = clock
        self._entries: OrderedDict[OffloadKey, _Entry] = OrderedDict()
        self._last_order = 0

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self) -> int:
        """Return the place in time of a question that is asked now."""
        self._last_order += 1
        return self._last_order

    def get(self, key: OffloadKey) -> Verdict | None:
        """Return what is believed of the chunk now, or None if it has to be asked."""
        entry = self._entries.get(key)
        if entry is None or self._clock() - entry.since >= self._ttl[entry.verdict]:
            return None
        return entry.verdict

    def note(self, key: OffloadKey, verdict: Verdict, begun: int | None = None) -> Verdict:
        """Remember what was seen, and return what counts: a verdict begun after ``begun`` (default: now) stays."""
        order = self.begin() if begun is None else begun
        known = self._entries.get(key)
        if known is not None and known.order > order:
            return known.verdict
        self._entries[key] = _Entry(verdict, self._clock(), order)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
        return verdict
