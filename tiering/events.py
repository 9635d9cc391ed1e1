"""KV events: what each tier has gained and lost, for routers that send requests to where their prefix is.

Events are made where the state changes, never at call sites, so that replaying them gives the true content of every
tier. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tiering.keys import OffloadKey

__all__ = ["EventLog", "OffloadingEvent"]


@dataclass(frozen=True, slots=True)
class OffloadingEvent:
    """Chunks that one tier gained or lost (seed, chapter 1.5).

    Attributes:
        keys: the chunks.
        medium: what kind of place: ``CPU`` or ``STORAGE``.
        removed: False when they became readable there, True when they went.
        tier: which tier.
    """

    keys: tuple[OffloadKey, ...]
    medium: str
    removed: bool
    tier: str = "cpu"


class EventLog:
    """The events of one tier since somebody last took them.

    A key is announced as stored only if it is not announced already, and as removed only if it is, so a consumer
    never sees two of a kind in a row. If nobody takes the events, they are folded into their net effect whenever
    they have grown beyond ``limit`` keys, so the log never holds much more than the tier does.
    """

    def __init__(self, medium: str, tier: str, *, limit: int = 65_536) -> None:
        self._medium = medium
        self._tier = tier
        self._limit = limit
        self._announced: set[OffloadKey] = set()
        self._taken: set[OffloadKey] = set()
        self._events: list[OffloadingEvent] = []
        self._num_keys = 0

    def stored(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks are now readable in the tier."""
        new = tuple(key for key in dict.fromkeys(keys) if key not in self._announced)
        self._announced.update(new)
        self._add(new, removed=False)

    def removed(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks are no longer in the tier."""
        gone = tuple(key for key in dict.fromkeys(keys) if key in self._announced)
        self._announced.difference_update(gone)
        self._add(gone, removed=True)

    def take(self) -> Sequence[OffloadingEvent]:
        """Return the events since the last call, oldest first, and forget them."""
        events, self._events, self._num_keys = self._events, [], 0
        for event in events:
            if event.removed:
                self._taken.difference_update(event.keys)
            else:
                self._taken.update(event.keys)
        return events

    def _add(self, keys: tuple[OffloadKey, ...], *, removed: bool) -> None:
        if not keys:
            return
        self._events.append(OffloadingEvent(keys, self._medium, removed, self._tier))
        self._num_keys += len(keys)
        if self._num_keys > self._limit:
            self._fold()

    def _fold(self) -> None:
        gone = tuple(self._taken - self._announced)
        new = tuple(self._announced - self._taken)
        self._events, self._num_keys = [], 0
        for keys, removed in ((gone, True), (new, False)):
            if keys:
                self._events.append(OffloadingEvent(keys, self._medium, removed, self._tier))
                self._num_keys += len(keys)
        self._limit = max(self._limit, 2 * self._num_keys)
