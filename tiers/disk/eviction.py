"""Which chunk goes next: the rules between which ``eviction`` chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from tiering.keys import OffloadKey

__all__ = ["EVICTION_RULES", "EvictionRule", "FifoWithReinsertion", "LeastRecentlyUsed"]


class EvictionRule(ABC):
    """Keeps the chunks of one tier in the order in which they are to go. No I/O; event loop thread only.

    The index puts new chunks at the end of the order and takes chunks away; a rule changes only the order.
    """

    def __init__(
        self, order: OrderedDict[OffloadKey, int], move_to_end: Callable[[Iterable[OffloadKey]], None]
    ) -> None:
        """Begin.

        Args:
            order: the index, key to slot, the next victim first; to be read only.
            move_to_end: makes chunks of ``order`` the last to go, the last one given last of all.
        """
        self.order = order
        self.move_to_end = move_to_end

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks in ``order`` were used, the last one given last of all."""

    @abstractmethod
    def refresh(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks in ``order`` belong to what was stored last, without counting that as a use."""

    def forget(self, keys: Iterable[OffloadKey]) -> None:
        """Note that chunks are gone, evicted or for another reason."""

    @abstractmethod
    def victims(self, count: int, must_stay: Callable[[int], bool]) -> Sequence[OffloadKey]:
        """Choose up to ``count`` chunks whose slots need not stay, the first victim first; they stay in ``order``."""


class LeastRecentlyUsed(EvictionRule):
    """The chunk that was not used for the longest time goes first."""

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self.move_to_end(keys)

    def refresh(self, keys: Iterable[OffloadKey]) -> None:
        self.move_to_end(keys)

    def victims(self, count: int, must_stay: Callable[[int], bool]) -> Sequence[OffloadKey]:
        return list(islice((key for key, slot in self.order.items() if not must_stay(slot)), count))


class FifoWithReinsertion(EvictionRule):
    """The chunk stored first goes first, unless it was used since: then it begins anew, as if just stored.

    Scans cannot flush what is used again, and a use costs no more than a note.
    """

    def __init__(
        self, order: OrderedDict[OffloadKey, int], move_to_end: Callable[[Iterable[OffloadKey]], None]
    ) -> None:
        super().__init__(order, move_to_end)
        self._used: set[OffloadKey] = set()

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        self._used.update(keys)

    def refresh(self, keys: Iterable[OffloadKey]) -> None:
        pass

    def forget(self, keys: Iterable[OffloadKey]) -> None:
        self._used.difference_update(keys)

    def victims(self, count: int, must_stay: Callable[[int], bool]) -> Sequence[OffloadKey]:
        victims: list[OffloadKey] = []
        reprieved: list[OffloadKey] = []
        for key, slot in self.order.items():
            if len(victims) == count:
                break
            if not must_stay(slot):
                (reprieved if key in self._used else victims).append(key)
        self._used.difference_update(reprieved)
        self.move_to_end(reprieved)
        # Where too few were without a use, those reprieved first go after all.
        return victims + reprieved[: count - len(victims)]


EVICTION_RULES: dict[str, type[EvictionRule]] = {"lru": LeastRecentlyUsed, "fifo": FifoWithReinsertion}
"""The rules by the names that a configuration uses."""
