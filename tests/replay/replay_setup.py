"""The configuration and the directories of a replay under test."""

from __future__ import annotations

from pathlib import Path

from tiering.keys import OffloadKey
from tiering.testing import key_pattern

ROW_BYTES = 65536
PRIMARY_ROWS = 300


class ReplaySetup:
    """A disk tier below few rows, so that most hits come from disk.

    Attributes:
        directory: for files of the test.
        root: root directory of the disk tier; not made yet.
        shared_memory: directory of the region.
        config: the configuration file.
    """

    def __init__(self, directory: Path, shared_memory: Path) -> None:
        self.directory = directory
        self.root = directory / "disk"
        self.shared_memory = shared_memory
        self.config = self.write_config(f"{{type: disk, root_dirs: [{self.root}], capacity: 300MiB}}")

    def write_config(self, *tiers: str) -> Path:
        file = self.directory / "tiering.yaml"
        lines = [f"cpu_bytes_to_use: {PRIMARY_ROWS * ROW_BYTES}", f"region: {{directory: {self.shared_memory}}}"]
        file.write_text("\n".join([*lines, "secondary_tier_configs:", *(f"- {tier}" for tier in tiers)]) + "\n")
        return file

    def arguments(self, num_requests: int) -> tuple[object, ...]:
        return ("--config", self.config, "--generate", num_requests, "--row-bytes", ROW_BYTES)

    def journal_bytes(self) -> int:
        """Return how much the disk tier has noted about chunks that are safely in their slots."""
        return sum(path.stat().st_size for path in self.root.rglob("index.*.journal"))

    def flip_byte(self, key: OffloadKey) -> None:
        """Spoil one byte of a chunk on disk, found by the bytes that its first rank has stored."""
        stored = key_pattern(key + bytes([0]), 64).tobytes()
        for slab in self.root.rglob("slab-*"):
            place = slab.read_bytes().find(stored)
            if place >= 0:
                with slab.open("r+b") as file:
                    file.seek(place)
                    file.write(bytes([stored[0] ^ 1]))
                return
        raise LookupError(f"no slab holds the chunk {key.hex()}")

    def region_files(self) -> list[Path]:
        return list(self.shared_memory.iterdir())
