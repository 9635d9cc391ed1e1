"""Which chunk goes next: the rules between which ``eviction`` chooses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice

from tiering.keys import OffloadKey

__all__ = ["EVICTION_RULES", "EvictionRule", "FifoWithReinsertion", "LeastRecentlyUsed"]


class EvictionRule(ABC):
    """Keeps the chunks of one tier in the order in which they are to go. No I/O; event loop thread only.

    The index puts new chunks at the end of the order and takes chunks away; a rule changes only the order.
    """

    def __init__(self, order: OrderedDict[OffloadKey, int], move_to_end: Callable[[OffloadKey], None]) -> None:
        """Begin.

        Args:
            order: the index, key to slot, the next victim first; to be read only.
            move_to_end: makes a chunk of ``order`` the last to go.
        """
        self.order = order
        self.move_to_end = move_to_end

    @abstractmethod
    def touch(self, key: OffloadKey) -> None:
        """Note that a chunk in ``order`` was used."""

    @abstractmethod
    def refresh(self, key: OffloadKey) -> None:
        """Note that a chunk in ``order`` belongs to what was stored last, without counting that as a use."""

    def forget(self, key: OffloadKey) -> None:
        """Note that a chunk is gone for another reason than eviction."""

    @abstractmethod
    def victims(self, count: int, may_go: Callable[[int], bool]) -> list[OffloadKey]:
        """Choose up to ``count`` chunks whose slot ``may_go``, the first victim first; they stay in ``order``."""


class LeastRecentlyUsed(EvictionRule):
    """The chunk that was not used for the longest time goes first."""

    def touch(self, key: OffloadKey) -> None:
        self.move_to_end(key)

    def refresh(self, key: OffloadKey) -> None:
        self.move_to_end(key)

    def victims(self, count: int, may_go: Callable[[int], bool]) -> list[OffloadKey]:
        return list(islice((key for key, slot in self.order.items() if may_go(slot)), count))


class FifoWithReinsertion(EvictionRule):
    """The chunk stored first goes first, unless it was used since: then it begins anew, as if just stored.

    Scans cannot flush what is used again, and a use costs no more than a note.
    """

    def __init__(self, order: OrderedDict[OffloadKey, int], move_to_end: Callable[[OffloadKey], None]) -> None:
        super().__init__(order, move_to_end)
        self._used: set[OffloadKey] = set()

    def touch(self, key: OffloadKey) -> None:
        self._used.add(key)

    def refresh(self, key: OffloadKey) -> None:
        pass

    def forget(self, key: OffloadKey) -> None:
        self._used.discard(key)

    def victims(self, count: int, may_go: Callable[[int], bool]) -> list[OffloadKey]:
        victims: list[OffloadKey] = []
        reprieved: list[OffloadKey] = []
        for key, slot in self.order.items():
            if len(victims) == count:
                break
            if may_go(slot):
                (reprieved if key in self._used else victims).append(key)
        for key in reprieved:
            self._used.discard(key)
            self.move_to_end(key)
        # Where too few were without a use, those reprieved first go after all.
        return victims + reprieved[: count - len(victims)]


EVICTION_RULES: dict[str, type[EvictionRule]] = {"lru": LeastRecentlyUsed, "fifo": FifoWithReinsertion}
"""The rules by the names that a configuration uses."""
