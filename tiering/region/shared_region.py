"""The shared region as its processes use it."""

from __future__ import annotations

import atexit
import errno
import logging
import mmap
import os
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tiering.errors import RegionError
from tiering.region.huge_pages import huge_page_policy
from tiering.region.layout import RegionLayout
from tiering.region.memory_limits import no_room
from tiering.region.opening import open_region
from tiering.region.ownership import give_up_life, hold_life, is_seat_taken, remove_name, take_seat
from tiering.region.populate import Population
from tiering.region.reclaim import region_path

if TYPE_CHECKING:
    import torch

__all__ = ["SharedOffloadRegion"]

logger = logging.getLogger(__name__)

_MAX_PIN_BYTES = 64 * 2**30
"""CUDA refuses to pin some hundreds of GiB in one call."""

_MAX_POPULATE_THREADS = 8


class SharedOffloadRegion:
    """CPU memory shared by the scheduler and the workers of one engine (seed, chapter 8).

    The first process to come creates it, the others join it. Each worker writes its own column only, so no lock is
    needed for the bytes. The file is removed by the last process to leave, early by `unlink`, or, where all were
    killed, by the next start in the same directory or by `reclaim_dead_regions`.

    Methods may be called from one thread at a time; the views they return may be used from any.

    Attributes:
        layout: the region's shape.
        rank: the worker's rank, or None in the scheduler.
        replica: the worker's number among the ranks that share its column; 0 in the scheduler.
        num_replicas: ranks that share each column.
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
        num_replicas: int = 1,
        populate_in_background: bool = False,
        populate_cpus: Set[int] | None = None,
    ) -> None:
        """Create or join the region, and take this process's pages.

        Args:
            instance_id: the engine's name; unique among the engines of one machine.
            total_size_bytes: bytes of all rows, ``RegionLayout.total_bytes``.
            num_blocks: number of rows.
            rank: whose column to use; None for the scheduler, which sees the whole region.
            num_workers: number of columns.
            cpu_page_size: bytes of one column in one row.
            directory: a directory in memory (tmpfs).
            join_timeout: seconds to wait for a file that somebody holds to become a region.
            num_replicas: how many ranks, one after another, hold the same KV and share a column.
            populate_in_background: return before the pages are there; `wait_until_ready` before they are used.
            populate_cpus: where the threads that populate run, so that pages lie in those processors' memory; None for
                anywhere. Only the first process to populate a page decides.

        Raises:
            ValueError: the numbers contradict one another, or the id cannot be part of a file name.
            RegionError: the region cannot be created, joined or populated; nothing of this process is left behind.
        """
        self.layout = RegionLayout(num_blocks, num_workers, cpu_page_size)
        if total_size_bytes != self.layout.total_bytes:
            raise ValueError(
                f"total_size_bytes is {total_size_bytes}, but {num_blocks} rows of {self.layout.row_bytes} bytes take "
                f"{self.layout.total_bytes}"
            )
        if rank is not None and not 0 <= rank < num_workers * num_replicas:
            raise ValueError(f"rank {rank} is outside 0..{num_workers * num_replicas - 1}")
        self.rank = rank
        self.num_replicas = num_replicas
        self._column = None if rank is None else rank // num_replicas
        self.replica = (rank or 0) % num_replicas
        self.mmap_path = region_path(directory, instance_id)
        self._seat = 0 if rank is None else 1 + rank
        self._owner_pid = os.getpid()
        self._used_column_bytes = 0
        self._fd, self.is_creator = open_region(self.mmap_path, self.layout, join_timeout)
        self._mapping: mmap.mmap | None = None
        self._population: Population | None = None
        self._is_open = True
        try:
            take_seat(self._fd, self.mmap_path, self._seat, "the scheduler" if rank is None else f"rank {rank}")
            self._mapping = self._map()
            self._begin_populating(populate_cpus)
            if not populate_in_background:
                self.wait_until_ready()
        except BaseException:
            self.cleanup()
            raise
        atexit.register(self.cleanup)

    def _map(self) -> mmap.mmap:
        try:
            mapping = mmap.mmap(self._fd, self.layout.file_bytes)
        except OSError as error:
            raise RegionError(f"cannot map {self.mmap_path}: {error.strerror}") from error
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
        return mapping

    def _begin_populating(self, cpus: Set[int] | None) -> None:
        num_threads = min(_MAX_POPULATE_THREADS, len(cpus or os.sched_getaffinity(0)))
        pages = self.layout.column_pages(self._column, mmap.PAGESIZE)
        self._population_begin = time.monotonic()
        self._population = Population(self._mapped, self._fd, pages, num_threads, cpus)
        logger.info(
            "%s region %s: %d rows of %.1f MiB, %.1f GiB, huge pages: %s; populating on %d threads",
            "created" if self.is_creator else "joined",
            self.mmap_path,
            self.layout.num_rows,
            self.layout.row_bytes / 2**20,
            self.layout.total_bytes / 2**30,
            huge_page_policy(self.mmap_path.parent),
            num_threads,
        )

    @property
    def is_ready(self) -> bool:
        """Whether this process's pages are there, so that `wait_until_ready` returns at once."""
        return self._population is None or self._population.is_done

    def wait_until_ready(self) -> None:
        """Block until this process's pages are there. Before that, using them is slow, and deadly if memory runs out.

        Raises:
            RegionError: they could not be had; the region has to be cleaned up.
        """
        if self._population is None:
            return
        try:
            self._population.wait()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise no_room(self.mmap_path, self.layout.file_bytes) from error
            raise RegionError(f"cannot populate {self.mmap_path}: {error.strerror}") from error
        self._population = None
        seconds = time.monotonic() - self._population_begin
        logger.info("region %s is ready after %.2f s", self.mmap_path, seconds)

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

        if self._column is None:
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
            storage_offset=self._column * self.layout.worker_page_bytes + self._used_column_bytes,
        )
        self._used_column_bytes += tensor_page_size
        return view

    def column_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield (address, length) of the pages of this process's column, for pinning; none ends within a row."""
        base = np.frombuffer(self._mapped, dtype=np.uint8).ctypes.data
        for offset, length in self.layout.column_pieces(self._column, mmap.PAGESIZE, _MAX_PIN_BYTES):
            yield base + offset, length

    def create_kv_memoryview(self) -> memoryview:
        """Return all rows as one writable memoryview of shape ``(num_rows, row_bytes)``, without a copy."""
        rows = memoryview(self._mapped)[: self.layout.total_bytes]
        return rows.cast("B", (self.layout.num_rows, self.layout.row_bytes))

    def row_views(self, rows: Sequence[int]) -> list[memoryview]:
        """Return one writable memoryview of exactly ``row_bytes`` per row number, without a copy.

        Each is over an array of its own, which lives as long as somebody can reach the row through it.

        Raises:
            ValueError: a number is outside the region.
        """
        if min(rows, default=0) < 0 or max(rows, default=0) >= self.layout.num_rows:
            raise ValueError(f"{self.mmap_path}: rows {list(rows)}: allowed are 0..{self.layout.num_rows - 1}")
        whole = np.frombuffer(self._mapped, np.uint8, self.layout.total_bytes)
        whole = whole.reshape(self.layout.num_rows, self.layout.row_bytes)
        return [whole[row].data for row in rows]

    def missing_ranks(self) -> list[int]:
        """Return the ranks that no living process has joined as, but this one."""
        ranks = range(self.layout.num_workers * self.num_replicas)
        return [rank for rank in ranks if rank != self.rank and not is_seat_taken(self._fd, 1 + rank)]

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
            if self._population is not None:
                self._population.stop()
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
