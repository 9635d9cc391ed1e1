"""Mapping the pages of a region before the first transfer, so that transfers do not pay for page faults."""

from __future__ import annotations

import errno
import logging
import mmap
from collections.abc import Iterable

import numpy as np

__all__ = ["MADV_POPULATE_WRITE", "prefault"]

logger = logging.getLogger(__name__)

MADV_POPULATE_WRITE = 23
"""Linux 5.14 and later; Python's mmap module has no name for it."""


def prefault(mapping: mmap.mmap, ranges: Iterable[tuple[int, int]]) -> None:
    """Make the pages of each (offset, length) present; their bytes do not change, whoever writes them meanwhile.

    Raises:
        OSError: the kernel refused for any reason other than not knowing the advice.
    """
    ranges = list(ranges)
    try:
        for offset, length in ranges:
            mapping.madvise(MADV_POPULATE_WRITE, offset, length)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        logger.warning("This kernel cannot populate shared pages in one call (Linux 5.14 can); the start is slower.")
        _read_each_page(mapping, ranges)


def _read_each_page(mapping: mmap.mmap, ranges: list[tuple[int, int]]) -> None:
    # Reads only: another process may already have stored into these pages, so even writing back what was read is wrong.
    pages = np.frombuffer(mapping, dtype=np.uint8)
    for offset, length in ranges:
        pages[offset : offset + length : mmap.PAGESIZE].max()
