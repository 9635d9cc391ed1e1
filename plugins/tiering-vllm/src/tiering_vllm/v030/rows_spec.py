"""Rows as vLLM carries them from its scheduler to its workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from vllm.v1.kv_offload.base import LoadStoreSpec

__all__ = ["RowsLoadStoreSpec"]


@dataclass
class RowsLoadStoreSpec(LoadStoreSpec):
    """The side of a transfer that is ours; crosses the process boundary by pickle.

    Attributes:
        rows: row numbers, int64 of shape ``(num_chunks,)``.
    """

    rows: npt.NDArray[np.int64]
