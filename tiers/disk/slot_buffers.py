"""Memory for reads and writes of neighbouring slots, used again and again."""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Sequence

import numpy as np

from tiers.disk.header import PAGE_BYTES

__all__ = ["BufferPool", "SlotBuffers", "copy_row", "is_page_aligned"]


class SlotBuffers:
    """Header pages for up to ``max_slots`` slots, and, with ``bounce``, page-aligned stand-ins for their rows.

    Attributes:
        headers: one page per slot; holds anything at first.
    """

    def __init__(self, max_slots: int, row_bytes: int, padding_bytes: int, *, bounce: bool) -> None:
        stride = PAGE_BYTES + (row_bytes + padding_bytes if bounce else 0)
        # mmap gives memory at a page boundary, as direct I/O needs it.
        memory = memoryview(mmap.mmap(-1, stride * max_slots + PAGE_BYTES))
        starts = range(0, stride * max_slots, stride)
        self.headers = [memory[start : start + PAGE_BYTES] for start in starts]
        self._bounce = bounce
        self._row_places = [memory[start + PAGE_BYTES :][:row_bytes] for start in starts] if bounce else []
        self._padding_bytes = padding_bytes
        self._whole = [memory[: start + stride] for start in starts]
        shared_padding = memory[stride * max_slots :][:padding_bytes]
        self._paddings = (
            [memory[start + PAGE_BYTES + row_bytes :][:padding_bytes] for start in starts]
            if bounce
            else [shared_padding] * max_slots
        )

    def rows(self, rows: Sequence[memoryview]) -> Sequence[memoryview]:
        """Return the memory that takes part in I/O for ``rows``: they themselves, or their stand-ins."""
        return self._row_places[: len(rows)] if self._bounce else rows

    def clear_padding(self, num_slots: int) -> None:
        """Make what goes behind each row zero."""
        if not self._padding_bytes:
            return
        for padding in self._paddings[:num_slots]:
            padding[:] = bytes(len(padding))

    def vector(self, rows: Sequence[memoryview]) -> list[memoryview]:
        """Return the buffers of one vectored call for ``rows``, in the order of the bytes on disk."""
        if self._bounce:
            return [self._whole[len(rows) - 1]]
        parts = zip(self.headers, rows, self._paddings, strict=False)
        return [part for triple in parts for part in triple if part]


class BufferPool:
    """Lends `SlotBuffers` to threads; makes new ones only while all others are lent."""

    def __init__(self, max_slots: int, row_bytes: int, padding_bytes: int) -> None:
        self._shape = (max_slots, row_bytes, padding_bytes)
        self._idle: dict[bool, deque[SlotBuffers]] = {False: deque(), True: deque()}

    def take(self, *, bounce: bool) -> SlotBuffers:
        """Return buffers that nobody else has until `give_back`."""
        try:
            return self._idle[bounce].pop()
        except IndexError:
            return SlotBuffers(*self._shape, bounce=bounce)

    def give_back(self, buffers: SlotBuffers, *, bounce: bool) -> None:
        """Take buffers back that were taken with the same ``bounce``."""
        self._idle[bounce].append(buffers)


def is_page_aligned(row: memoryview) -> bool:
    """Say whether ``row`` begins at a page boundary."""
    if not row:
        return True
    # ctypes is five times as fast, but takes no memory that is read-only.
    if row.readonly:
        return np.frombuffer(row, np.uint8).ctypes.data % PAGE_BYTES == 0
    return ctypes.addressof(ctypes.c_char.from_buffer(row)) % PAGE_BYTES == 0


def copy_row(target: memoryview, source: memoryview) -> None:
    """Copy bytes; other threads run meanwhile, which a memoryview slice assignment does not let them."""
    if source:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
