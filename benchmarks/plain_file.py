"""What a directory's device makes of plain reads and writes: the limit for whoever moves the same rows."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.comparison import check

__all__ = ["PlainFile"]


class PlainFile:
    """One preallocated file, of which each row is a call."""

    def __init__(self, path: Path, rows: Sequence[memoryview], *, direct: bool) -> None:
        """Make the file. ``direct`` bypasses the page cache, and takes page-aligned rows of whole pages only."""
        self._rows = rows
        self._row_bytes = len(rows[0])
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0), 0o600)
        os.posix_fallocate(self._fd, 0, self._row_bytes * len(rows))

    def write(self, num_threads: int) -> float:
        """Write all rows; return the seconds that took."""
        return self._move(os.pwritev, num_threads)

    def read(self, num_threads: int) -> float:
        """Fill all rows; return the seconds that took."""
        return self._move(os.preadv, num_threads)

    def close(self) -> None:
        os.close(self._fd)

    def _move(self, call: Callable[[int, Sequence[memoryview], int], int], num_threads: int) -> float:
        def move(row: int) -> bool:
            return call(self._fd, [self._rows[row]], row * self._row_bytes) == self._row_bytes

        with ThreadPoolExecutor(num_threads) as threads:
            began = time.perf_counter()
            moved = list(threads.map(move, range(len(self._rows))))
            seconds = time.perf_counter() - began
        check(all(moved), "whole rows of the plain file")
        return seconds
