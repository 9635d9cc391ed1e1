"""Rows in ordinary memory of one process, for tests that need no shared region."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["UNWRITTEN", "PlainRows"]

UNWRITTEN = 0xEE
"""The byte in rows that nobody has written."""


class PlainRows:
    """Stands in for `tiering.region.SharedOffloadRegion` under a manager and its tiers.

    Attributes:
        array: all rows, uint8, shape ``(num_rows, row_bytes)``; filled with 0xEE at first, so that bytes nobody wrote
            show.
    """

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.array = np.full((num_rows, row_bytes), UNWRITTEN, np.uint8)

    def create_kv_memoryview(self) -> memoryview:
        """All rows, shape ``(num_rows, row_bytes)``, without a copy."""
        return self.array.data

    def row_views(self, rows: Sequence[int]) -> list[memoryview]:
        """One writable memoryview of ``row_bytes`` per row number, without a copy. From any thread."""
        return [self.array[row].data for row in rows]

    def cleanup(self) -> None:
        """Nothing to give back."""
