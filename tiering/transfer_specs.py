"""Where the bytes of a transfer lie: device blocks on one side, rows of the shared region on the other.

A manager decides what moves and says so in these values; a worker reads them and moves the bytes. They cross process
boundaries by pickle, so they hold plain numpy arrays and tuples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tiering.keys import OffloadKey

__all__ = [
    "BlockIDsLoadStoreSpec",
    "CPULoadStoreSpec",
    "GPULoadStoreSpec",
    "LoadStoreSpec",
    "PrepareStoreOutput",
    "TransferSpec",
    "TransferType",
]


class LoadStoreSpec(ABC):
    """One side of a transfer (seed, chapter 1.3)."""

    @staticmethod
    @abstractmethod
    def medium() -> str:
        """Name the medium; a worker picks its handler by the pair (source medium, destination medium)."""


class BlockIDsLoadStoreSpec(LoadStoreSpec, ABC):
    """A side of a transfer given by numbers of blocks or rows.

    Attributes:
        block_ids: int64 array of shape ``(num_blocks,)``.
    """

    def __init__(self, block_ids: Iterable[int] | npt.NDArray[np.int64]) -> None:
        ids = block_ids if isinstance(block_ids, np.ndarray) else np.array(list(block_ids), dtype=np.int64)
        self.block_ids: npt.NDArray[np.int64] = ids.astype(np.int64, copy=False)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.block_ids.tolist()})"


class GPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Device blocks, group after group (seed, chapter 1.7).

    Attributes:
        block_ids: the blocks of all groups, joined in group order.
        group_sizes: how many of them belong to each KV-cache group.
        block_indices: per group, the logical index of its first block in the request. Where one row holds
            ``block_size_factor`` blocks, ``index % block_size_factor`` blocks of the first row are skipped.
    """

    def __init__(
        self,
        block_ids: Iterable[int] | npt.NDArray[np.int64],
        group_sizes: Sequence[int],
        block_indices: Sequence[int],
    ) -> None:
        """Check the shapes.

        Raises:
            ValueError: the group sizes do not add up to the number of blocks, a size or an index is negative, or
                there is not exactly one index per group.
        """
        super().__init__(block_ids)
        if min(group_sizes, default=0) < 0 or min(block_indices, default=0) < 0:
            raise ValueError(f"negative entry in group sizes {group_sizes} or block indices {block_indices}")
        if sum(group_sizes) != len(self.block_ids):
            raise ValueError(f"group sizes add up to {sum(group_sizes)}, but there are {len(self.block_ids)} blocks")
        if len(block_indices) != len(group_sizes):
            raise ValueError(f"{len(block_indices)} block indices given for {len(group_sizes)} groups")
        self.group_sizes = tuple(group_sizes)
        self.block_indices = tuple(block_indices)

    @staticmethod
    def medium() -> str:
        return "GPU"


class CPULoadStoreSpec(BlockIDsLoadStoreSpec):
    """Rows of the shared region; ``block_ids`` are row numbers (seed, chapter 10)."""

    @staticmethod
    def medium() -> str:
        return "CPU"


TransferSpec = tuple[LoadStoreSpec, LoadStoreSpec]
"""(source, destination)."""

TransferType = tuple[str, str]
"""(source medium, destination medium)."""


@dataclass(frozen=True, slots=True)
class PrepareStoreOutput:
    """What `prepare_store` granted (seed, chapter 1.4).

    Attributes:
        keys_to_store: the keys that got a row, without duplicates, in the order offered.
        store_spec: their rows, one per key and in the same order.
        evicted_keys: the keys that lost their row for it.
    """

    keys_to_store: list[OffloadKey]
    store_spec: CPULoadStoreSpec
    evicted_keys: list[OffloadKey]
