"""Finding the chunks of an earlier run: from the index files, or else from the header pages of the slabs."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tiering.keys import OffloadKey
from tiers.disk.header import PAGE_BYTES, parse_header
from tiers.disk.index_files import UnreadableIndexError, last_epoch, read_index
from tiers.disk.slab import SlabFiles
from tiers.disk.slots import IndexEntry

__all__ = ["Recovery", "recover_chunks"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What an earlier run left.

    Attributes:
        entries: the chunks, least recent first, in slots that exist; keys and slots are distinct.
        epoch: the highest epoch of its index files.
        problems: damage met, one sentence each.
    """

    entries: list[IndexEntry]
    epoch: int
    problems: list[str]


def recover_chunks(
    directory: Path, identity: bytes, roots: Sequence[SlabFiles], fingerprint: bytes, row_bytes: int, *, verify: bool
) -> Recovery:
    """Read the index in ``directory``, or scan all slabs if it cannot be used. Blocks.

    With ``verify``, the header page of each chunk is read too, and each one that does not fit is a problem.
    """
    try:
        index = read_index(directory, identity)
    except UnreadableIndexError as error:
        # A directory never used before has neither index nor slabs, and that is no damage.
        problems = [str(error)] if any(root.has_slot(0) for root in roots) else []
        return Recovery(_scan(roots, fingerprint, row_bytes), last_epoch(directory), problems)
    in_use = [entry for entry in index.entries if entry.slot // len(roots) < roots[entry.slot % len(roots)].num_slots]
    entries = [entry for entry in in_use if roots[entry.slot % len(roots)].has_slot(entry.slot // len(roots))]
    problems = list(index.problems)
    if len(entries) < len(in_use):
        problems.append(f"{len(in_use) - len(entries)} chunks lie in slots that are not there any more")
    if verify:
        found = set(_headers(roots, fingerprint, row_bytes))
        lost = [entry for entry in entries if entry not in found]
        problems += [f"slot {slot} does not hold chunk {key.hex()} any more" for key, slot, _ in lost]
    return Recovery(entries, index.epoch, problems)


def _scan(roots: Sequence[SlabFiles], fingerprint: bytes, row_bytes: int) -> list[IndexEntry]:
    newest: dict[OffloadKey, IndexEntry] = {}
    for entry in sorted(_headers(roots, fingerprint, row_bytes), key=lambda entry: entry.generation):
        newest.pop(entry.key, None)
        newest[entry.key] = entry
    return list(newest.values())


def _headers(roots: Sequence[SlabFiles], fingerprint: bytes, row_bytes: int) -> Iterator[IndexEntry]:
    """Yield what the intact header pages of this namespace say, slots numbered over all roots."""
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    for root_idx, root in enumerate(roots):
        for slot in filter(root.has_slot, range(root.num_slots)):
            try:
                root.read(slot, [page])
            except OSError:
                continue
            header = parse_header(page)
            if header is not None and (header.fingerprint, header.row_bytes) == (fingerprint, row_bytes):
                yield IndexEntry(header.key, slot * len(roots) + root_idx, header.generation)
