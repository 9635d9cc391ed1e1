"""The contract of an eviction policy.

A policy orders rows; it knows nothing of bytes, tiers or requests. The smallest useful one is `tiering.policies.lru`.
Third-party policies come in through the entry-point group ``tiering.policies``. Scheduler thread only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

from tiering.hook_marker import hookimpl
from tiering.keys import OffloadKey
from tiering.row_table import RowTable

__all__ = ["EvictionPolicy", "hookimpl"]


class EvictionPolicy(ABC):
    """Decides which rows to give up.

    Guaranteed by the core
        A row is inserted before anything else is said of it, and not again before it was evicted, removed or cleared.
        `unblock` follows for every row for which the policy called ``rows.block``, unless the row is touched,
        refreshed, removed or cleared before.
    Owed by the policy
        Constant cost per row in every method, however many rows are resident or cannot be evicted; no I/O.
        `tiering.policies.recency_list.RecencyList` has both properties ready-made.
    Errors
        A policy that raises, or answers with rows that may not be evicted, is replaced by `tiering.policies.lru`.
    """

    policy_name: ClassVar[str]

    def __init__(self, rows: RowTable) -> None:
        """Start empty. ``rows`` is to be read only, except for ``rows.block``."""
        self.rows = rows

    @abstractmethod
    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        """Take up rows that have just been reserved, in prefix order: the first is the last to go."""

    @abstractmethod
    def remove(self, row: int, key: OffloadKey) -> None:
        """Forget a row whose write was given up."""

    @abstractmethod
    def touch(self, rows: Iterable[int]) -> None:
        """Note that these rows were used again, the last one given most recently."""

    def refresh(self, rows: Iterable[int]) -> None:
        """Make these rows the most recent, the last one given most of all, without counting a further use.

        For rows whose first use has just ended. The default does what `touch` does, which suits a policy that
        counts no uses.
        """
        self.touch(rows)

    @abstractmethod
    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        """Choose and forget ``num_rows`` (possibly 0) rows for which ``rows.is_evictable`` holds.

        Args:
            num_rows: how many rows are missing.
            incoming: the keys about to be inserted; a policy that remembers evicted keys learns from them here.

        Returns:
            The rows, first victim first; or None, with nothing changed, if there are not that many.
        """

    @abstractmethod
    def unblock(self, row: int) -> None:
        """Take ``row``, put aside before, back into its old place: nobody uses it any more."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything, also what was learnt."""
