"""An eviction policy as the rows hold it: behind a guard.

A policy that raises, or gives up rows that are not to be had, must cost hits at worst: a row that somebody still copies
to or from would be given to another chunk. So it is replaced, once and for all, by least recent use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tiering.errors import PluginError, text_of
from tiering.keys import OffloadKey
from tiering.policies.lru import LRUCachePolicy
from tiering.policies.policy import EvictionPolicy
from tiering.row_table import RowTable

__all__ = ["GuardedPolicy"]

logger = logging.getLogger(__name__)


class GuardedPolicy:
    """The methods of an `EvictionPolicy`; none of them raises on account of the policy.

    Attributes:
        policy: the one that decides now.
    """

    def __init__(self, policy: EvictionPolicy, table: RowTable, key_of: Sequence[OffloadKey | None]) -> None:
        """Guard ``policy``. ``key_of`` says which rows hold a key, and is kept up to date by its owner.

        A row holds its key already when it is inserted, and still when it is removed.
        """
        self.policy = policy
        self._table = table
        self._key_of = key_of

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        """See `EvictionPolicy.insert`."""
        self._tell(self.policy.insert, rows, keys)

    def remove(self, row: int, key: OffloadKey) -> None:
        """See `EvictionPolicy.remove`."""
        if not self._tell(self.policy.remove, row, key):
            self.policy.remove(row, key)

    def touch(self, rows: Iterable[int]) -> None:
        """See `EvictionPolicy.touch`."""
        self._tell(self.policy.touch, rows)

    def refresh(self, rows: Iterable[int]) -> None:
        """See `EvictionPolicy.refresh`."""
        self._tell(self.policy.refresh, rows)

    def evict(self, num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        """See `EvictionPolicy.evict`."""
        try:
            victims = self.policy.evict(num_rows, incoming)
            if victims is not None:
                self._check(victims, num_rows)
        except BaseException as error:  # the policy is not ours
            self._replace(error)
            victims = self.policy.evict(num_rows, incoming)
        return victims

    def unblock(self, row: int) -> None:
        """See `EvictionPolicy.unblock`."""
        self._tell(self.policy.unblock, row)

    def clear(self) -> None:
        """See `EvictionPolicy.clear`."""
        self._tell(self.policy.clear)

    def _tell(self, method: Callable[..., None], *args: object) -> bool:
        """Call a method; False if there is another policy since, which knows all rows that hold a key."""
        try:
            method(*args)
        except BaseException as error:  # the policy is not ours
            self._replace(error)
            return False
        return True

    def _check(self, victims: Sequence[int], num_rows: int) -> None:
        if not len(victims) == len(set(victims)) == num_rows:
            raise PluginError(f"{num_rows} distinct rows expected, not {victims!r:.100}")
        key_of, ref_cnt, leases, step = self._key_of, self._table.ref_cnt, self._table.leases, self._table.step
        for row in victims:  # `RowTable.is_evictable`, without a call for each
            if row < 0 or key_of[row] is None or ref_cnt[row] or leases[row] == step:
                raise PluginError(f"row {row} is not to be had")

    def _replace(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error  # the user's, who ends the engine
        name = type(self.policy).policy_name
        logger.error("eviction policy %s failed: %s; rows go by least recent use from now on", name, text_of(error))
        rows = [row for row, key in enumerate(self._key_of) if key is not None]
        for row in rows:
            self._table.blocked[row] = 0
        self.policy = LRUCachePolicy(self._table)
        self.policy.insert(rows, ())
