"""Slots that keep failing while the disk around them works."""

from __future__ import annotations

from collections.abc import Iterable

from tiers.disk.slots import IndexEntry

__all__ = ["BadSlots"]

_FAILURES_UNTIL_BAD = 3


class BadSlots:
    """Counts failures in a row, slot by slot. Event loop thread only."""

    def __init__(self, num_roots: int) -> None:
        self._num_roots = num_roots
        self._failures: dict[int, int] = {}
        self._unreadable: dict[int, IndexEntry] = {}

    def worked(self, entries: Iterable[IndexEntry]) -> None:
        """Note that the slots of these chunks were read or written."""
        if self._failures:
            for entry in entries:
                self._failures.pop(entry.slot, None)
                self._unreadable.pop(entry.slot, None)

    def not_read(self, entry: IndexEntry) -> None:
        """Note that a chunk could not be read from its slot."""
        self.not_written(entry.slot)
        if self.is_bad(entry.slot):
            self._unreadable[entry.slot] = entry

    def not_written(self, slot: int) -> None:
        """Note that a slot could not be written to."""
        self._failures[slot] = self._failures.get(slot, 0) + 1

    def is_bad(self, slot: int) -> bool:
        """Say whether a slot has failed so often that it is to be given up."""
        return self._failures.get(slot, 0) >= _FAILURES_UNTIL_BAD

    def take_unreadable(self, root: int) -> list[IndexEntry]:
        """Return the chunks in bad slots of a root, which is known to be well."""
        slots = [slot for slot in self._unreadable if slot % self._num_roots == root]
        return [self._unreadable.pop(slot) for slot in slots]
