"""The chunks of one root as columns: half a million of them must not become half a million objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.keys import OffloadKey

__all__ = ["Column", "IndexColumns", "empty_columns"]

Column = npt.NDArray[np.uint64]


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


def empty_columns() -> IndexColumns:
    """Return the columns of no chunk."""
    nothing = np.zeros(0, np.uint64)
    return IndexColumns([], nothing, nothing, nothing)
