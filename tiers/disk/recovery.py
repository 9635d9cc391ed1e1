"""Finding the chunks of an earlier run in one root: from the index files, or else from the header pages."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiering.keys import OffloadKey
from tiers.disk.header import PAGE_BYTES, parse_header
from tiers.disk.index_columns import IndexColumns
from tiers.disk.index_files import UnreadableIndexError, last_epoch, read_index
from tiers.disk.slab import SlabFiles

__all__ = ["Recovery", "recover_chunks"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What an earlier run left in a root.

    Attributes:
        chunks: the chunks, in slots that exist.
        epoch: the highest epoch of its index files.
        problems: damage met, one sentence each.
    """

    chunks: IndexColumns
    epoch: int
    problems: list[str]


def recover_chunks(
    directory: Path, identity: bytes, slabs: SlabFiles, fingerprint: bytes, row_bytes: int, *, verify: bool
) -> Recovery:
    """Read the index in ``directory``, or scan all slabs if it cannot be used. Blocks.

    With ``verify``, the header page of each chunk is read too, and each one that does not fit is a problem.
    """
    try:
        index = read_index(directory, identity)
    except UnreadableIndexError as error:
        # A directory never used before has neither index nor slabs, and that is no damage.
        problems = [str(error)] if slabs.has_slot(0) else []
        return Recovery(_scan(slabs, fingerprint, row_bytes), last_epoch(directory), problems)
    chunks = index.chunks.where(index.chunks.slots < np.uint64(slabs.num_slots))
    there = chunks.where(slabs.has_slots(chunks.slots))
    problems = list(index.problems)
    if len(there) < len(chunks):
        problems.append(f"{len(chunks) - len(there)} chunks lie in slots of {directory} that are not there any more")
    if verify:
        found = {slot: (key, generation) for slot, key, generation in _headers(slabs, fingerprint, row_bytes)}
        places = zip(there.slots.tolist(), there.keys, there.generations.tolist(), strict=True)
        problems += [
            f"slot {slot} of {directory} does not hold chunk {key.hex()} any more"
            for slot, key, generation in places
            if found.get(slot) != (key, generation)
        ]
    return Recovery(there, index.epoch, problems)


def _scan(slabs: SlabFiles, fingerprint: bytes, row_bytes: int) -> IndexColumns:
    newest: dict[OffloadKey, tuple[int, int]] = {}
    for slot, key, generation in sorted(_headers(slabs, fingerprint, row_bytes), key=lambda found: found[2]):
        newest.pop(key, None)
        newest[key] = (slot, generation)
    table = np.array(list(newest.values()), np.uint64).reshape(-1, 2)
    # How recently each was used is not known; when it was written stands in for it.
    return IndexColumns(list(newest), table[:, 0].copy(), table[:, 1].copy(), table[:, 1].copy())


def _headers(slabs: SlabFiles, fingerprint: bytes, row_bytes: int) -> Iterator[tuple[int, OffloadKey, int]]:
    """Yield slot, key and generation of each intact header page of this namespace."""
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    for slot in filter(slabs.has_slot, range(slabs.num_slots)):
        try:
            slabs.read(slot, [page])
        except OSError:
            continue
        header = parse_header(page)
        if header is not None and (header.fingerprint, header.row_bytes) == (fingerprint, row_bytes):
            yield slot, header.key, header.generation
