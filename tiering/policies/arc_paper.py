"""Adaptive replacement as published: N. Megiddo and D. S. Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache",
FAST 2003, figure 4, for batches of keys instead of single pages.

Against `tiering.policies.arc`: a key that returns while it is a ghost enters T2, since it has now been used twice,
and the ghosts of T1 share the room with T1 itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from tiering.keys import OffloadKey
from tiering.policies.arc import ARCCachePolicy
from tiering.policies.policy import EvictionPolicy, hookimpl

__all__ = ["PaperARCCachePolicy", "tiering_register_policy"]


class PaperARCCachePolicy(ARCCachePolicy):
    """ARC with ghost hits promoted to T2 and the paper's bounds on the ghost lists."""

    policy_name = "arc_paper"

    def insert(self, rows: Sequence[int], keys: Sequence[OffloadKey]) -> None:
        super().insert(rows, keys)
        self._trim_ghosts()

    def _enter(self, row: int, key: OffloadKey) -> None:
        if key in self._b1 or key in self._b2:
            self._b1.pop(key, None)
            self._b2.pop(key, None)
            self._t2.append(row)
        else:
            self._t1.append(row)

    def _trim_ghosts(self) -> None:
        num_rows = self.rows.num_rows
        while self._b1 and len(self._t1) + len(self._b1) > num_rows:
            self._b1.popitem(last=False)
        num_resident = len(self._t1) + len(self._t2)
        while self._b2 and num_resident + len(self._b1) + len(self._b2) > 2 * num_rows:
            self._b2.popitem(last=False)


@hookimpl
def tiering_register_policy() -> type[EvictionPolicy]:
    return PaperARCCachePolicy
