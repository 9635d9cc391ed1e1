"""What lies in the slots of a disk tier, read by ``docs/disk-format.md`` alone, and what the tier makes of it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import xxhash
from disk_harness import Disk, key_of

from tiers.disk.tier import DiskTier

KEY_BYTES = 36
HEADER_BYTES = 4096


class Slot(NamedTuple):
    """A slot with an intact header page."""

    path: Path
    offset: int
    number: int
    generation: int


def settings(disk: Disk) -> dict[str, object]:
    """Slabs of eight slots; an index of one snapshot and one journal."""
    return {"slab_bytes": 8 * disk.slot_bytes, "o_direct": "off", "snapshot_every": 10**6}


def number_of(key: bytes) -> int:
    return int.from_bytes(key[:32], "big")


def slots_on_disk(disk: Disk) -> list[Slot]:
    """Read all header pages; the order is that of the slots."""
    slots = []
    for path in disk.slabs():
        data = path.read_bytes()
        for offset in range(0, len(data), disk.slot_bytes):
            page = data[offset : offset + HEADER_BYTES]
            if struct.pack("<Q", xxhash.xxh3_64_intdigest(page[:4088])) == page[4088:]:
                (generation,) = struct.unpack_from("<Q", page, 32)
                slots.append(Slot(path, offset, number_of(page[56 : 56 + KEY_BYTES]), generation))
    return slots


def newest(slots: list[Slot]) -> dict[int, Slot]:
    """Return the slot that counts for each chunk."""
    return {slot.number: slot for slot in sorted(slots, key=lambda slot: slot.generation)}


async def assert_only_lost(disk: Disk, tier: DiskTier, lost: set[int], numbers: range, trial: str) -> None:
    answers = await disk.load(tier, *numbers)
    assert {number for number, answer in zip(numbers, answers, strict=True) if not answer} == lost, trial
    assert [tier.contains(key_of(number)) for number in numbers] == answers, trial
    assert await tier.lookup([key_of(number) for number in numbers]) == answers, trial
