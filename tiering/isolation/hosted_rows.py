"""The rows of the shared region, as the process of a tier maps them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

from tiering.region.ownership import hold_life

__all__ = ["HostedRows"]


class HostedRows:
    """All rows of a region whose file is open already. They stay mapped until the process ends."""

    def __init__(self, inherited_fd: int, num_rows: int, row_bytes: int) -> None:
        """Map the rows, and count as one who lives in the region, so that nobody takes its memory away.

        Raises:
            OSError: the file cannot be mapped.
        """
        # Opened anew, because locks belong to an open file, and the inherited one is shared with the engine. This works
        # for a file without a name, too.
        fd = os.open(f"/proc/self/fd/{inherited_fd}", os.O_RDWR | os.O_CLOEXEC)
        os.close(inherited_fd)
        hold_life(fd)
        mapping = mmap.mmap(fd, num_rows * row_bytes)
        self._rows = np.frombuffer(mapping, np.uint8).reshape(num_rows, row_bytes)

    def views(self, rows: Sequence[int]) -> list[memoryview]:
        """Return one writable memoryview per row number, without a copy, each over an array of its own.

        Raises:
            ValueError: a number is outside the region.
        """
        if min(rows, default=0) < 0 or max(rows, default=0) >= len(self._rows):
            raise ValueError(f"rows {list(rows)}: allowed are 0..{len(self._rows) - 1}")
        return [self._rows[row].data for row in rows]
