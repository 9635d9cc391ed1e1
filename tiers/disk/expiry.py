"""The age of chunks: what ``ttl`` means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush

from tiers.disk.slots import IndexEntry

__all__ = ["Expiry"]


class Expiry:
    """The writes of chunks, by the time at which they are too old.

    While running only ``clock`` counts, which never jumps. What an earlier run wrote has its age from the time of
    day in its generation; one from the future counts as new.
    """

    def __init__(self, ttl_seconds: float, clock: Callable[[], float]) -> None:
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._deadlines: list[tuple[float, IndexEntry]] = []

    def restore(self, entries: Iterable[IndexEntry], wall_microseconds: int) -> None:
        """Take up what an earlier run wrote."""
        now = self._clock()
        for entry in entries:
            age_seconds = max(0, wall_microseconds - entry.generation) / 1e6
            self._deadlines.append((now + self._ttl_seconds - age_seconds, entry))
        heapify(self._deadlines)

    def note(self, entry: IndexEntry) -> None:
        """Note that a chunk has just been written."""
        heappush(self._deadlines, (self._clock() + self._ttl_seconds, entry))

    def take_expired(self) -> list[IndexEntry]:
        """Return the writes whose time is over, each once; their chunks may be gone or stored anew meanwhile."""
        now = self._clock()
        expired = []
        while self._deadlines and self._deadlines[0][0] <= now:
            expired.append(heappop(self._deadlines)[1])
        return expired
