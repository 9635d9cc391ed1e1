"""Which chunks are worth a write: what ``admission`` and ``write_budget`` mean."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from tiering.keys import OffloadKey

__all__ = ["SecondOffer", "WriteBudget"]

_SECONDS_PER_DAY = 86400.0
_BURST_SECONDS = 3600.0


class SecondOffer:
    """Admits a chunk when it is offered for the second time, so that what is used once is never written."""

    def __init__(self, max_keys: int) -> None:
        """Remember up to ``max_keys`` chunks offered once; beyond it the oldest offer is forgotten."""
        self._max_keys = max_keys
        self._offered: OrderedDict[OffloadKey, None] = OrderedDict()

    def admits(self, key: OffloadKey) -> bool:
        """Note the offer of a chunk; say whether there was one before."""
        if key in self._offered:
            del self._offered[key]
            return True
        self._offered[key] = None
        if len(self._offered) > self._max_keys:
            self._offered.popitem(last=False)
        return False


class WriteBudget:
    """Bytes that may be written per day, against the wear of a drive.

    The budget comes in evenly; what is not used is kept for up to an hour, or until it is enough for one chunk.
    """

    def __init__(self, bytes_per_day: int, chunk_bytes: int, clock: Callable[[], float]) -> None:
        """Begin with an hour's share. ``chunk_bytes`` is what one chunk costs; ``clock`` gives seconds."""
        self._bytes_per_second = bytes_per_day / _SECONDS_PER_DAY
        self._chunk_bytes = chunk_bytes
        self._most_bytes = max(self._bytes_per_second * _BURST_SECONDS, chunk_bytes)
        self._clock = clock
        self._bytes_left = self._most_bytes
        self._since = clock()

    def take(self, num_chunks: int) -> int:
        """Return for how many of ``num_chunks`` chunks there is budget, and use that up."""
        now = self._clock()
        self._bytes_left = min(self._most_bytes, self._bytes_left + (now - self._since) * self._bytes_per_second)
        self._since = now
        num_taken = min(num_chunks, int(self._bytes_left // self._chunk_bytes))
        self._bytes_left -= num_taken * self._chunk_bytes
        return num_taken

    def give_back(self, num_chunks: int) -> None:
        """Return the budget of chunks that were not written after all."""
        self._bytes_left = min(self._most_bytes, self._bytes_left + num_chunks * self._chunk_bytes)
