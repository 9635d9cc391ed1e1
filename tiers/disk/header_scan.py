"""The chunks of a root as its header pages tell them: what is left when there is no index."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from typing import NamedTuple

from tiering.keys import OffloadKey
from tiers.disk.header import PAGE_BYTES, parse_header
from tiers.disk.slab import SlabFiles

__all__ = ["FoundChunk", "scan_headers"]

_NEVER_WRITTEN = bytes(PAGE_BYTES)
_SLOTS_AT_A_TIME = 1024
# Below this size a slot is read whole, with its neighbours in the same call: that costs less than a call per page.
_SMALL_SLOT_BYTES = 32 * 2**10
_BYTES_AT_A_TIME = 2**20


class FoundChunk(NamedTuple):
    """An intact header page of this namespace."""

    slot: int
    key: OffloadKey
    generation: int


def scan_headers(
    slabs: SlabFiles, fingerprint: bytes, row_bytes: int, num_threads: int
) -> tuple[list[FoundChunk], int]:
    """Read the header pages of all slots, with ``num_threads`` reads in flight. Blocks.

    Returns the chunks in the order of their slots, and how many pages were damaged or could not be read.
    """
    shares = [
        range(start, min(start + _SLOTS_AT_A_TIME, begin_of_slab + slabs.slots_per_slab, slabs.num_slots))
        for begin_of_slab in range(0, slabs.num_slots, slabs.slots_per_slab)
        for start in range(begin_of_slab, begin_of_slab + slabs.slots_per_slab, _SLOTS_AT_A_TIME)
    ]
    with ThreadPoolExecutor(num_threads) as threads:
        parts = list(threads.map(partial(_scan, slabs, fingerprint, row_bytes), shares))
    return list(chain.from_iterable(found for found, _ in parts)), sum(num_damaged for _, num_damaged in parts)


def _scan(slabs: SlabFiles, fingerprint: bytes, row_bytes: int, slots: range) -> tuple[list[FoundChunk], int]:
    found = []
    num_damaged = 0
    for slot, page in _pages(slabs, [slot for slot in slots if slabs.has_slot(slot)]):
        header = None if page is None else parse_header(page)
        if header is None:
            num_damaged += page is None or bytes(page) != _NEVER_WRITTEN
        elif (header.fingerprint, header.row_bytes) == (fingerprint, row_bytes):
            found.append(FoundChunk(slot, header.key, header.generation))
    return found, num_damaged


def _pages(slabs: SlabFiles, slots: list[int]) -> Iterator[tuple[int, memoryview | None]]:
    """Yield neighbouring slots, each with its header page, valid until the next one, or None if it cannot be read."""
    if slabs.slot_bytes > _SMALL_SLOT_BYTES:
        yield from _pages_alone(slabs, slots)
        return
    num_joined = _BYTES_AT_A_TIME // slabs.slot_bytes
    memory = memoryview(mmap.mmap(-1, num_joined * slabs.slot_bytes))
    for start in range(0, len(slots), num_joined):
        joined = slots[start : start + num_joined]
        try:
            slabs.read(joined[0], [memory[: len(joined) * slabs.slot_bytes]])
        except OSError:
            yield from _pages_alone(slabs, joined)
            continue
        for place, slot in enumerate(joined):
            yield slot, memory[place * slabs.slot_bytes :][:PAGE_BYTES]


def _pages_alone(slabs: SlabFiles, slots: list[int]) -> Iterator[tuple[int, memoryview | None]]:
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    for slot in slots:
        try:
            slabs.read(slot, [page])
        except OSError:
            yield slot, None
        else:
            yield slot, page
