"""Slots found by their header pages alone: small ones read whole and many at a time, larger ones page by page."""

from __future__ import annotations

from pathlib import Path

import pytest
from disk_harness import key_of
from faulty_calls import FailingPlaces

from tiers.disk.header import encode_header
from tiers.disk.header_scan import FoundChunk, scan_headers
from tiers.disk.slab import SlabFiles
from tiers.disk.slot_io import slot_bytes_for

FINGERPRINT = bytes(range(16))
SLOTS_PER_SLAB = 300
NUM_SLOTS = 500


@pytest.mark.parametrize("row_bytes", [4096, 64 * 2**10])
def test_each_intact_header_is_found_and_each_other_one_counted(tmp_path: Path, row_bytes: int) -> None:
    slot_bytes = slot_bytes_for(row_bytes)
    never_written, foreign, damaged, unreadable = {7, 8, 299}, {30}, {0, 301, 499}, 450
    expected = []
    for slab, first in enumerate(range(0, NUM_SLOTS, SLOTS_PER_SLAB)):
        with (tmp_path / f"slab-{slab:06d}.kv").open("wb") as file:
            for slot in range(first, min(first + SLOTS_PER_SLAB, NUM_SLOTS)):
                if slot in never_written:
                    continue
                fingerprint = bytes(16) if slot in foreign else FINGERPRINT
                page = bytearray(encode_header(fingerprint, key_of(slot), 1000 - slot, row_bytes, 5))
                page[slot] ^= slot in damaged
                file.seek((slot - first) * slot_bytes)
                file.write(page)
                if slot not in foreign | damaged | {unreadable}:
                    expected.append(FoundChunk(slot, key_of(slot), 1000 - slot))
            file.truncate((min(first + SLOTS_PER_SLAB, NUM_SLOTS) - first) * slot_bytes)
    system = FailingPlaces()
    system.bad_sector = ("slab-000001.kv", (unreadable - SLOTS_PER_SLAB) * slot_bytes + 100)
    slabs = SlabFiles(
        tmp_path,
        system,
        slot_bytes=slot_bytes,
        slots_per_slab=SLOTS_PER_SLAB,
        num_slots=NUM_SLOTS,
        direct=False,
        free_space_reserve=0,
    )
    try:
        assert scan_headers(slabs, FINGERPRINT, row_bytes, 3) == (expected, len(damaged) + 1)
    finally:
        slabs.close()
