"""Bytes that belong to a key: what tests put into rows, so that any mix-up of chunks, rows or offsets shows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["fill_row", "key_pattern", "row_matches"]

Bytes = npt.NDArray[np.uint8]


def key_pattern(key: bytes, num_bytes: int) -> Bytes:
    """Return the ``num_bytes`` bytes that belong to ``key``: the same on every machine, a new array at every call.

    Hardly any two 8-byte words of one pattern are alike, and none at the same place of two patterns.
    """
    words = _base(-(-num_bytes // 8)) ^ np.uint64(xxhash.xxh3_64_intdigest(key))
    return words.view(np.uint8)[:num_bytes]


def fill_row(row: memoryview | Bytes, key: bytes) -> None:
    """Write the pattern of ``key`` over the whole of ``row``, shape ``(row_bytes,)``."""
    target = np.asarray(row)
    target[:] = key_pattern(key, target.size)


def row_matches(row: memoryview | Bytes, key: bytes) -> bool:
    """Say whether ``row`` holds exactly the pattern of ``key``."""
    found = np.asarray(row)
    return np.array_equal(found, key_pattern(key, found.size))


@lru_cache(maxsize=8)
def _base(num_words: int) -> npt.NDArray[np.uint64]:
    words = np.atleast_1d(np.random.PCG64(0).random_raw(num_words))  # the generator whose output numpy never changes
    words.flags.writeable = False
    return words
