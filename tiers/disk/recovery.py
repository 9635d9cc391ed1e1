"""Finding the chunks of an earlier run in one root: from the index files, or else from the header pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tiering.keys import OffloadKey
from tiers.disk.header_scan import FoundChunk, scan_headers
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
        num_damaged: header pages that were scanned, for want of an index, and were neither intact nor empty.
    """

    chunks: IndexColumns
    epoch: int
    problems: list[str]
    num_damaged: int = 0


def recover_chunks(
    directory: Path,
    identity: bytes,
    slabs: SlabFiles,
    fingerprint: bytes,
    row_bytes: int,
    *,
    num_threads: int,
    verify: bool,
) -> Recovery:
    """Read the index in ``directory``, or scan all slabs if it cannot be used. Blocks.

    Up to ``num_threads`` reads of header pages are in flight at a time. With ``verify``, the header page of each chunk
    is read even if there is an index, and each one that does not fit is a problem.
    """
    try:
        index = read_index(directory, identity)
    except UnreadableIndexError as error:
        # A directory never used before has neither index nor slabs, and that is no damage.
        problems = [str(error)] if slabs.has_slot(0) else []
        found, num_damaged = scan_headers(slabs, fingerprint, row_bytes, num_threads)
        if num_damaged:
            problems.append(f"{num_damaged} header pages of {directory} are damaged or cannot be read")
        return Recovery(_newest(found), last_epoch(directory), problems, num_damaged)
    chunks = index.chunks.where(index.chunks.slots < np.uint64(slabs.num_slots))
    there = chunks.where(slabs.has_slots(chunks.slots))
    problems = list(index.problems)
    if len(there) < len(chunks):
        problems.append(f"{len(chunks) - len(there)} chunks lie in slots of {directory} that are not there any more")
    if verify:
        headers, _ = scan_headers(slabs, fingerprint, row_bytes, num_threads)
        in_slots = {slot: (key, generation) for slot, key, generation in headers}
        places = zip(there.slots.tolist(), there.keys, there.generations.tolist(), strict=True)
        problems += [
            f"slot {slot} of {directory} does not hold chunk {key.hex()} any more"
            for slot, key, generation in places
            if in_slots.get(slot) != (key, generation)
        ]
    return Recovery(there, index.epoch, problems)


def _newest(found: list[FoundChunk]) -> IndexColumns:
    """Return the chunks; of two slots with one key the one written later counts."""
    newest: dict[OffloadKey, tuple[int, int]] = {}
    for slot, key, generation in sorted(found, key=lambda slot: slot.generation):
        newest.pop(key, None)
        newest[key] = (slot, generation)
    table = np.array(list(newest.values()), np.uint64).reshape(-1, 2)
    # How recently each was used is not known; when it was written stands in for it.
    return IndexColumns(list(newest), table[:, 0].copy(), table[:, 1].copy(), table[:, 1].copy())
