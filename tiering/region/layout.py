"""The arithmetic of the shared region: how many rows a budget holds, and where each rank's bytes lie.

Rows follow one another. In each row every rank has its column, side by side in rank order, and the row is padded so
that rows can be buffers of direct I/O. One header page lies behind the rows::

    row 0   [ rank 0 | rank 1 | padding ]
    row 1   [ rank 0 | rank 1 | padding ]
    header  [ one page, see header.py ]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tiering.errors import ConfigError

__all__ = ["HEADER_BYTES", "ROW_ALIGNMENT", "RegionLayout"]

ROW_ALIGNMENT = 4096
"""Row sizes are multiples of this, because direct I/O needs aligned addresses and lengths."""

HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """The shape of a region, the same in each of its processes.

    Attributes:
        num_rows: chunks that fit.
        num_workers: ranks whose bytes lie side by side in a row.
        worker_page_bytes: bytes of one rank in one row, over all of its tensors.
    """

    num_rows: int
    num_workers: int
    worker_page_bytes: int

    def __post_init__(self) -> None:
        if min(self.num_rows, self.num_workers, self.worker_page_bytes) < 1:
            raise ValueError(f"{self}: each number must be at least 1")

    @classmethod
    def from_budget(cls, budget_bytes: int, worker_page_bytes: int, num_workers: int) -> RegionLayout:
        """Return the layout with as many rows as ``budget_bytes`` can hold.

        Raises:
            ConfigError: not a single row fits.
        """
        one_row = cls(1, num_workers, worker_page_bytes)
        num_rows = budget_bytes // one_row.row_bytes
        if num_rows < 1:
            raise ConfigError(
                f"cpu_bytes_to_use: {budget_bytes} bytes do not hold one row of {one_row.row_bytes} bytes ("
                f"{num_workers} workers x {worker_page_bytes}, padded to {ROW_ALIGNMENT}); "
                f"allowed: {one_row.row_bytes} or more"
            )
        return cls(num_rows, num_workers, worker_page_bytes)

    @property
    def row_bytes(self) -> int:
        """Bytes from one row to the next, padding included."""
        return -(-self.num_workers * self.worker_page_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT

    @property
    def total_bytes(self) -> int:
        """Bytes of all rows; what counts against the user's budget."""
        return self.num_rows * self.row_bytes

    @property
    def file_bytes(self) -> int:
        """Bytes of the rows and of the header behind them."""
        return self.total_bytes + HEADER_BYTES

    def column_pages(self, column: int | None, page_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield (offset, length) of the pages that hold ``column``, or all rows for None.

        Offsets and lengths are multiples of ``page_bytes``, except that the last range ends with the rows. Ranges are
        in order and do not overlap; those that touch are joined, because each one costs its reader a system call.
        """
        if column is None:
            yield 0, self.total_bytes
            return
        begin = end = 0
        for place in range(column * self.worker_page_bytes, self.total_bytes, self.row_bytes):
            first = place // page_bytes * page_bytes
            if first > end:
                if end > begin:
                    yield begin, end - begin
                begin = first
            behind = -(-(place + self.worker_page_bytes) // page_bytes) * page_bytes
            end = min(behind, self.total_bytes)
        yield begin, end - begin

    def column_pieces(self, column: int | None, page_bytes: int, max_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of `column_pages` in pieces of about ``max_bytes`` at most, none of which ends within a row.

        A piece may be larger only where a single row is.
        """
        unit = math.lcm(self.row_bytes, page_bytes)
        step = max(1, max_bytes // unit) * unit
        for begin, length in self.column_pages(column, page_bytes):
            cuts = [begin, *range((begin // step + 1) * step, begin + length, step), begin + length]
            yield from ((first, behind - first) for first, behind in pairwise(cuts))
