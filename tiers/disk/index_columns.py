"""The chunks of one root as columns: half a million of them must not become half a million objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.keys import OffloadKey

__all__ = ["KEYS_AT_A_TIME", "Column", "FrozenTable", "IndexColumns"]

Column = npt.NDArray[np.uint64]

KEYS_AT_A_TIME = 4096
"""How many keys one call that holds the interpreter may handle, so that other threads get their turn."""


@dataclass(frozen=True, slots=True)
class IndexColumns:
    """Chunks in the order in which they are to go, the next victim first; all columns have one length.

    Attributes:
        keys: the keys, all different.
        slots: where they lie, numbered within the root, all different.
        generations: the numbers of the writes that put them there.
        recency: numbers that grow in this order, comparable among the roots of a tier.
    """

    keys: list[OffloadKey]
    slots: Column
    generations: Column
    recency: Column

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, mask: npt.NDArray[np.bool_]) -> IndexColumns:
        """Return the chunks for which ``mask`` holds."""
        if mask.all():
            return self
        keys = [key for key, holds in zip(self.keys, mask.tolist(), strict=True) if holds]
        return IndexColumns(keys, self.slots[mask], self.generations[mask], self.recency[mask])


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """All slots of one root at one moment, cheap to make; all columns have one length.

    Attributes:
        keys: the key in each slot, or None.
        generations: as in `IndexColumns`.
        recency: as in `IndexColumns`; 0 where there is no chunk.
    """

    keys: npt.NDArray[np.object_]
    generations: Column
    recency: Column

    def columns(self) -> IndexColumns:
        """Return the chunks in order. Takes long for many of them, but lets other threads run meanwhile."""
        used = np.flatnonzero(self.recency)
        slots = used[np.argsort(self.recency[used], kind="stable")]
        keys: list[OffloadKey] = []
        for start in range(0, len(slots), KEYS_AT_A_TIME):
            keys += self.keys[slots[start : start + KEYS_AT_A_TIME]].tolist()
        return IndexColumns(keys, slots.astype(np.uint64), self.generations[slots], self.recency[slots])
