"""Copying many pieces within host memory while other Python threads run."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from tiering.device.sub_blocks import IntArray

__all__ = ["copy_pieces"]

_SMALL_BYTES = 8 * 1024
"""Below this, a call per piece costs more than moving the bytes twice through the cache."""

_FEW_PIECES = 16

_HELD_BYTES = 512 * 1024
"""Bytes of pieces that are copied before the interpreter lock is given away: some 50 microseconds."""

_STAGE_BYTES = 256 * 1024
"""Bytes that numpy gathers before it scatters them; they stay in the processor's cache."""

_memmove_holding_the_lock = ctypes.PyDLL(None).memmove
_memmove_holding_the_lock.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memmove_holding_the_lock.restype = None


def copy_pieces(src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
    """Copy ``sizes[i]`` bytes from ``src_ptrs[i]`` to ``dst_ptrs[i]`` for all i, in any order.

    Other Python threads run meanwhile: they wait for the interpreter lock for some 50 microseconds at a time.
    """
    is_small = sizes < _SMALL_BYTES
    if is_small.any():
        for size in np.unique(sizes[is_small]).tolist():
            chosen = sizes == size
            copy = _copy_by_call if np.count_nonzero(chosen) < _FEW_PIECES else _copy_equal
            copy(src_ptrs[chosen], dst_ptrs[chosen], sizes[chosen])
        large = ~is_small
        src_ptrs, dst_ptrs, sizes = src_ptrs[large], dst_ptrs[large], sizes[large]
    _copy_by_call(src_ptrs, dst_ptrs, sizes)


def _copy_by_call(src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
    # Not each piece gives the lock away: beside a thread that is always busy, such as an engine that polls, it takes a
    # millisecond to get it back.
    held = 0
    for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
        held += size
        if held < _HELD_BYTES:
            _memmove_holding_the_lock(dst, src, size)
        else:
            ctypes.memmove(dst, src, size)
            held = 0


def _copy_equal(src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray) -> None:
    """Copy pieces of one size with one call of numpy per stage."""
    size = int(sizes[0])
    src, src_indices = _as_elements(src_ptrs, size)
    dst, dst_indices = _as_elements(dst_ptrs, size)
    step = max(1, _STAGE_BYTES // size)
    for begin in range(0, len(sizes), step):
        dst[dst_indices[begin : begin + step]] = src[src_indices[begin : begin + step]]


class _Memory:
    """Memory as numpy is told of it."""

    def __init__(self, address: int, num_elements: int, stride: int, size: int) -> None:
        self.__array_interface__ = {
            "shape": (num_elements,),
            "typestr": f"|V{size}",
            "data": (address, False),
            "strides": (stride,),
            "version": 3,
        }


def _as_elements(ptrs: IntArray, size: int) -> tuple[npt.NDArray[np.void], IntArray]:
    """Return an array of opaque elements of ``size`` bytes, and the indices in it at which ``ptrs`` point.

    The elements may overlap, and memory between those that are pointed at is never touched.
    """
    first = int(ptrs.min())
    offsets = ptrs - first
    stride = int(np.gcd.reduce(offsets)) or size
    indices = offsets // stride
    return np.asarray(_Memory(first, int(indices.max()) + 1, stride, size)), indices
