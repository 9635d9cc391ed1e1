"""Ranks that hold the same KV (latent attention, or fewer KV heads than ranks) store it once, taking turns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.device.sub_blocks import IntArray

__all__ = ["StoreTurns"]


@dataclass(frozen=True, slots=True)
class StoreTurns:
    """Which rows are this rank's to store, by row number, so that all ranks agree without a word.

    Each rank loads all rows. A store has ended when all ranks have ended their parts of it.

    Attributes:
        replica: this rank's number among those that hold the same KV.
        num_replicas: how many they are; they share one column of the region.
    """

    replica: int = 0
    num_replicas: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.replica < self.num_replicas:
            raise ValueError(f"replica {self.replica} is outside 0..{self.num_replicas - 1}")

    def are_mine(self, rows: IntArray) -> npt.NDArray[np.bool_]:
        """Say for each row number whether this rank stores it."""
        return np.equal(rows % self.num_replicas, self.replica)
