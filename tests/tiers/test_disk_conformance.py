"""The disk tier under the conformance suite that third parties get."""

from __future__ import annotations

from pathlib import Path

from tiering.keys import OffloadKey
from tiering.testing import Ability, TierTests
from tiering.tier import Tier, TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.header import PAGE_BYTES, parse_header
from tiers.disk.slot_io import slot_bytes_for
from tiers.disk.tier import DiskTier


class TestDiskTier(TierTests):
    abilities = frozenset(Ability) - {Ability.ANY_LENGTH, Ability.BREAKS}  # slots have one length; faulty_fs.py breaks
    row_bytes = 8192
    max_key_bytes = 1024

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        capacity = (max_chunks or 256) * slot_bytes_for(self.row_bytes)
        config = DiskConfig.model_validate({"type": "disk", "root_dirs": [place], "capacity": capacity})
        return DiskTier(config, context)

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        place = self.find(tier, key)
        if place is None:
            return None
        slab, offset = place
        return slab.read_bytes()[offset + PAGE_BYTES : offset + PAGE_BYTES + self.row_bytes]

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        self.overwrite(tier, key, PAGE_BYTES, payload)

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        self.overwrite(tier, key, 0, bytes(PAGE_BYTES))

    def overwrite(self, tier: Tier, key: OffloadKey, offset_in_slot: int, data: bytes) -> None:
        place = self.find(tier, key)
        assert place is not None
        slab, offset = place
        with slab.open("r+b") as file:
            file.seek(offset + offset_in_slot)
            file.write(data)

    def find(self, tier: Tier, key: OffloadKey) -> tuple[Path, int] | None:
        """Return where the chunk's newest slot is, by its header alone."""
        assert isinstance(tier, DiskTier)
        found = []
        (root,) = tier.config.root_dirs
        for slab in root.glob(f"{tier.context.namespace.fingerprint.hex()}/slab-*.kv"):
            data = memoryview(slab.read_bytes())
            for offset in range(0, len(data) - PAGE_BYTES + 1, slot_bytes_for(self.row_bytes)):
                header = parse_header(data[offset : offset + PAGE_BYTES])
                if header is not None and header.key == key:
                    found.append((header.generation, (slab, offset)))
        return max(found)[1] if found else None
