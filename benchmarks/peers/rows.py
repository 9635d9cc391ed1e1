"""The rows, keys and jobs that everybody gets who is compared."""

from __future__ import annotations

import hashlib
import mmap
import sys
from typing import Any

import numpy as np

from tiering.keys import OffloadKey, make_offload_key

__all__ = ["Rows", "jobs_of", "keys_of"]

_ROWS_PER_JOB = 16


class Rows:
    """Page-aligned rows with random bytes that can be recognised; ``views[i]`` is row ``i``."""

    def __init__(self, row_bytes: int, num_rows: int) -> None:
        self.row_bytes = row_bytes
        self.num_rows = num_rows
        self.memory = memoryview(mmap.mmap(-1, row_bytes * num_rows)).cast("B", (num_rows, row_bytes))
        self._all = np.frombuffer(self.memory, np.uint64).reshape(num_rows, -1)
        flat = self.memory.cast("B")
        self.views = [flat[start : start + row_bytes] for start in range(0, row_bytes * num_rows, row_bytes)]

    def fill(self, seed: int) -> None:
        self._all[:] = self._expected(seed)

    def clear(self) -> None:
        self._all[:] = 0

    def verify(self, seed: int, who: str) -> None:
        if not np.array_equal(self._all, self._expected(seed)):
            sys.exit(f"{who} loaded other bytes than were stored")

    def _expected(self, seed: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        row = np.random.default_rng(seed).integers(2**63, size=self.row_bytes // 8, dtype=np.uint64)
        return row[None, :] ^ np.arange(self.num_rows, dtype=np.uint64)[:, None]


def keys_of(round_number: int, num_rows: int) -> list[OffloadKey]:
    hashes = (hashlib.sha256(b"%d %d" % (round_number, number)).digest() for number in range(num_rows))
    return [make_offload_key(chunk_hash, 0) for chunk_hash in hashes]


def jobs_of(num_rows: int) -> list[range]:
    return [range(start, min(start + _ROWS_PER_JOB, num_rows)) for start in range(0, num_rows, _ROWS_PER_JOB)]
