"""The state of every row, in a few preallocated lists.

One entry per row in each, so that the calls on the scheduler thread cost a few list accesses per key and create no
objects. Scheduler thread only.
"""

from __future__ import annotations

__all__ = ["WRITING", "RowTable"]

WRITING = -1
"""Reference count of a row whose bytes are not there yet (seed, chapter 4.6)."""


class RowTable:
    """The state of every row, as an eviction policy may read it.

    Attributes:
        num_rows: rows are numbered 0..num_rows-1.
        ref_cnt: per row, `WRITING` or the number of its readers.
        leases: per row, the last step in which somebody was told that it is readable.
        step: the number of the current step.
        blocked: per row, 1 while a policy keeps it aside because it could not be evicted.
    """

    __slots__ = ("blocked", "blocked_by_lease", "leases", "num_rows", "ref_cnt", "step")

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.ref_cnt = [0] * num_rows
        self.leases = [-1] * num_rows
        self.step = 0
        self.blocked = bytearray(num_rows)
        self.blocked_by_lease: list[int] = []

    def is_evictable(self, row: int) -> bool:
        """Whether nobody writes, reads or counts on ``row`` in this step."""
        return self.ref_cnt[row] == 0 and self.leases[row] != self.step

    def block(self, row: int) -> None:
        """Note that a policy has put ``row`` aside; `EvictionPolicy.unblock` follows once it may be evicted."""
        self.blocked[row] = 1
        if self.ref_cnt[row] == 0:
            self.blocked_by_lease.append(row)
