"""Rows in order of recency, with victims found in constant time however many rows cannot be evicted.

A doubly linked list over two preallocated arrays. Pinning a row costs nothing here: only when a search for a victim
meets a row that cannot go, the row is put aside, remembering its place; it comes back when its last user leaves.
Every put-aside is thus paid for by the pin that caused it, and no search passes the same obstacle twice.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from tiering.row_table import RowTable

__all__ = ["RecencyList", "Victim"]

_UNLINKED = -1


class Victim(NamedTuple):
    """A row taken out by `RecencyList.pop_victim`, with the place that `restore` gives back to it."""

    place: int
    row: int


class RecencyList:
    """A list of distinct rows, least recent first.

    Rows put aside were all older than what is still linked, and a search looks at those that came back before it
    looks at the links. So one increasing number per removal from the old end keeps the order exact.
    """

    __slots__ = ("_aside", "_end", "_next", "_next_place", "_previous", "_returned", "_rows", "_size")

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._end = rows.num_rows  # the sentinel: its next is the least, its previous the most recent row
        self._next = [_UNLINKED] * (rows.num_rows + 1)
        self._previous = [_UNLINKED] * (rows.num_rows + 1)
        self.clear()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, row: int) -> bool:
        return self._next[row] != _UNLINKED or row in self._aside

    def append(self, row: int) -> None:
        """Add ``row`` as the most recent one."""
        self._link_last(row)
        self._size += 1

    def remove(self, row: int) -> None:
        """Take ``row`` out."""
        self._detach(row)
        self._size -= 1

    def move_to_end(self, row: int) -> None:
        """Make ``row`` the most recent one."""
        self._detach(row)
        self._link_last(row)

    def unblock(self, row: int) -> None:
        """Let searches see again a row that one of them has put aside."""
        place = self._aside.get(row)
        if place is not None:
            heappush(self._returned, Victim(place, row))

    def pop_victim(self) -> Victim | None:
        """Take out the least recent evictable row; None if there is none."""
        rows, next_row = self._rows, self._next
        while self._returned:
            victim = heappop(self._returned)
            if self._aside.get(victim.row) != victim.place:
                continue  # used or removed since it came back
            if rows.is_evictable(victim.row):
                del self._aside[victim.row]
                self._size -= 1
                return victim
            rows.block(victim.row)
        while (row := next_row[self._end]) != self._end:
            self._unlink(row)
            self._next_place += 1
            if rows.is_evictable(row):
                self._size -= 1
                return Victim(self._next_place, row)
            self._aside[row] = self._next_place
            rows.block(row)
        return None

    def restore(self, victim: Victim) -> None:
        """Put a victim back where it was: it is not needed after all."""
        self._aside[victim.row] = victim.place
        heappush(self._returned, victim)
        self._size += 1

    def clear(self) -> None:
        """Take everything out."""
        for array in (self._next, self._previous):
            array[:] = [_UNLINKED] * len(array)
            array[self._end] = self._end
        self._aside: dict[int, int] = {}
        self._returned: list[Victim] = []
        self._next_place = 0
        self._size = 0

    def _link_last(self, row: int) -> None:
        last = self._previous[self._end]
        self._next[last] = self._previous[self._end] = row
        self._previous[row] = last
        self._next[row] = self._end

    def _unlink(self, row: int) -> None:
        before, after = self._previous[row], self._next[row]
        self._next[before] = after
        self._previous[after] = before
        self._next[row] = _UNLINKED

    def _detach(self, row: int) -> None:
        if self._next[row] != _UNLINKED:
            self._unlink(row)
        else:
            del self._aside[row]
            self._rows.blocked[row] = 0
