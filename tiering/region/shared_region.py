"""The shared region as its processes use it."""

from __future__ import annotations

import atexit
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tiering.region.layout import RegionLayout
from tiering.region.opening import open_region
from tiering.region.ownership import give_up_life, hold_life, remove_name, take_seat
from tiering.region.prefault import prefault
from tiering.region.reclaim import region_path

if TYPE_CHECKING:
    import torch

__all__ = ["SharedOffloadRegion"]


class SharedOffloadRegion:
    """CPU memory shared by the scheduler and the workers of one engine (seed, chapter 8).

    The first process to come creates it, the others join it. Each worker writes its own column only, so no lock is
    needed for the bytes. The file is removed by the last process to leave, early by `unlink`, or, where all were
    killed, by the next start in the same directory or by `reclaim_dead_regions`.

    Methods may be called from one thread at a time; the views they return may be used from any.

    Attributes:
        layout: the region's shape.
        rank: the worker's rank, or None in the scheduler.
        mmap_path: the region's file.
        is_creator: whether this process created it.
    """

    def __init__(  # noqa: PLR0917 - the seed's arguments, in the seed's order
        self,
        instance_id: str,
        total_size_bytes: int,
        num_blocks: int,
        rank: int | None,
        num_workers: int,
        cpu_page_size: int,
        *,
        directory: str | Path = "/dev/shm",
        join_timeout: float = 600.0,
    ) -> None:
        """Create or join the region, and map this process's pages.

        Args:
            instance_id: the engine's name; unique among the engines of one machine.
            total_size_bytes: bytes of all rows, ``RegionLayout.total_bytes``.
            num_blocks: number of rows.
            rank: which column to use; None for the scheduler, which sees the whole region.
            num_workers: number of columns.
            cpu_page_size: bytes of one column in one row.
            directory: a directory in memory (tmpfs).
            join_timeout: seconds to wait for a living creator; a dead one is noticed at once.

        Raises:
            ValueError: the numbers contradict one another, or the id cannot be part of a file name.
            RegionError: the region cannot be created or joined; nothing of this process is left behind.
            OSError: the kernel refused to map the pages; likewise.
        """
        self.layout = RegionLayout(num_blocks, num_workers, cpu_page_size)
        if total_size_bytes != self.layout.total_bytes:
            raise ValueError(
                f"total_size_bytes is {total_size_bytes}, but {num_blocks} rows of {self.layout.row_bytes} bytes take "
                f"{self.layout.total_bytes}"
            )
        if rank is not None and not 0 <= rank < num_workers:
            raise ValueError(f"rank {rank} is outside 0..{num_workers - 1}")
        self.rank = rank
        self.mmap_path = region_path(directory, instance_id)
        self._seat = 0 if rank is None else 1 + rank
        self._owner_pid = os.getpid()
        self._used_column_bytes = 0
        self._fd, self.is_creator = open_region(self.mmap_path, self.layout, join_timeout)
        self._mapping: mmap.mmap | None = None
        self._is_open = True
        try:
            take_seat(self._fd, self.mmap_path, self._seat, "the scheduler" if rank is None else f"rank {rank}")
            self._mapping = mmap.mmap(self._fd, self.layout.file_bytes)
            prefault(self._mapping, self.layout.column_pages(rank, mmap.PAGESIZE))
        except BaseException:
            self.cleanup()
            raise
        atexit.register(self.cleanup)

    @property
    def total_size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.layout.total_bytes

    @property
    def num_blocks(self) -> int:
        """Number of rows."""
        return self.layout.num_rows

    def create_next_view(self, tensor_page_size: int) -> torch.Tensor:
        """Return the place of this worker's next tensor: int8, ``(num_rows, tensor_page_size)``, rows apart by stride.

        Views follow one another within the worker's column, in the order of the calls.

        Raises:
            ValueError: the column has not that many bytes left, or this is the scheduler, which has no column.
        """
        import torch  # noqa: PLC0415 - the control path uses this module without torch

        if self.rank is None:
            raise ValueError(f"{self.mmap_path}: the scheduler has no column of its own")
        left = self.layout.worker_page_bytes - self._used_column_bytes
        if not 0 < tensor_page_size <= left:
            raise ValueError(
                f"{self.mmap_path}: a tensor page of {tensor_page_size} bytes does not fit, {left} of "
                f"{self.layout.worker_page_bytes} bytes of the column are left"
            )
        # Through numpy, which keeps the memory mapped while a view lives; torch.frombuffer alone does not.
        whole = torch.from_numpy(np.frombuffer(self._mapped, dtype=np.int8, count=self.layout.total_bytes))
        view = whole.as_strided(
            size=(self.layout.num_rows, tensor_page_size),
            stride=(self.layout.row_bytes, 1),
            storage_offset=self.rank * self.layout.worker_page_bytes + self._used_column_bytes,
        )
        self._used_column_bytes += tensor_page_size
        return view

    def create_kv_memoryview(self) -> memoryview:
        """Return all rows as one writable memoryview of shape ``(num_rows, row_bytes)``, without a copy."""
        rows = memoryview(self._mapped)[: self.layout.total_bytes]
        return rows.cast("B", (self.layout.num_rows, self.layout.row_bytes))

    def row_views(self, rows: Sequence[int]) -> list[memoryview]:
        """Return one writable memoryview of exactly ``row_bytes`` per row number, without a copy.

        Raises:
            ValueError: a number is outside the region.
        """
        if min(rows, default=0) < 0 or max(rows, default=0) >= self.layout.num_rows:
            raise ValueError(f"{self.mmap_path}: rows {list(rows)}: allowed are 0..{self.layout.num_rows - 1}")
        whole = memoryview(self._mapped)
        row_bytes = self.layout.row_bytes
        return [whole[row * row_bytes : (row + 1) * row_bytes] for row in rows]

    def unlink(self) -> None:
        """Remove the file's name now that all processes have joined: whatever kills them, nothing is left behind.

        The memory stays until the last process has ended. Later calls, from any process, do nothing.
        """
        if self._is_open and os.getpid() == self._owner_pid:
            remove_name(self._fd, self.mmap_path)

    def cleanup(self) -> None:
        """Leave the region; the last process to leave removes the file. Later calls do nothing.

        Views that are still in use keep the memory mapped until they are dropped. In a forked child this lets go of
        the child's copies only: the region is its parent's.
        """
        if not self._is_open:
            return
        self._is_open = False
        atexit.unregister(self.cleanup)
        is_owner = os.getpid() == self._owner_pid
        if is_owner:
            give_up_life(self._fd, self.mmap_path, self._seat)
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                # A view is alive. The mapping goes with the last one, and our life with the mapping, which has a
                # duplicate of the descriptor: until then nobody may take the memory away.
                if is_owner:
                    hold_life(self._fd)
        os.close(self._fd)

    @property
    def _mapped(self) -> mmap.mmap:
        if self._mapping is None:
            raise ValueError(f"{self.mmap_path}: the region has been cleaned up")
        return self._mapping
