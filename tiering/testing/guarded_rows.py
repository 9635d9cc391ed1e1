"""Rows with guards between them: a write outside of a row shows."""

from __future__ import annotations

import mmap

import numpy as np

__all__ = ["GuardedRows"]

_GUARD_BYTES = 4096
_GUARD = 0xC5
_UNWRITTEN = 0xEE


class GuardedRows:
    """Rows that begin on page boundaries, as those of the shared region do, each with a page of guard on both sides.

    Attributes:
        views: one writable memoryview of ``row_bytes`` per row, filled with 0xEE at first.
    """

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        stride = -(-row_bytes // _GUARD_BYTES) * _GUARD_BYTES + _GUARD_BYTES
        self._memory = np.frombuffer(mmap.mmap(-1, _GUARD_BYTES + num_rows * stride), np.uint8)
        self._rows = [
            self._memory[start : start + row_bytes]
            for start in range(_GUARD_BYTES, _GUARD_BYTES + num_rows * stride, stride)
        ]
        self._memory[:] = _GUARD
        for row in self._rows:
            row[:] = _UNWRITTEN
        self.views = [row.data for row in self._rows]

    def num_guards_hit(self) -> int:
        """Count the bytes outside of the rows that are not what they were."""
        inside = sum(int(np.count_nonzero(row != _GUARD)) for row in self._rows)
        return int(np.count_nonzero(self._memory != _GUARD)) - inside
