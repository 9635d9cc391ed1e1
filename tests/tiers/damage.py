"""What disks do to bytes: flipped bits, lost and torn sectors; and files as they were, to begin each trial with."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

SECTORS = (512, 4096)


def flip_bits(draw: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one bit flipped, or with several: close together, or anywhere."""
    harmed = bytearray(data)
    span = draw.choice([1, 8, len(data)])
    start = draw.randrange(max(1, len(data) - span + 1))
    for bit in draw.sample(range(8 * start, 8 * min(start + span, len(data))), draw.choice([1, 1, 1, 2, 3, 8])):
        harmed[bit // 8] ^= 1 << bit % 8
    return bytes(harmed)


def harm_sector(draw: random.Random, data: bytes) -> bytes:
    """Return ``data`` with one aligned sector zeroed, random, or holding what belongs to another sector."""
    sector = draw.choice(SECTORS)
    start, other = (draw.randrange(-(-len(data) // sector)) * sector for _ in range(2))
    size = min(sector, len(data) - start)
    content = draw.choice([bytes(size), draw.randbytes(size), data[other : other + size]])
    return data[:start] + content + data[start + len(content) :]


def first_difference(before: bytes, after: bytes) -> int:
    """Return the offset of the first byte that differs; there is one."""
    return next(offset for offset, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1])


class Image:
    """All files below a directory at one moment."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    def put_back(self, harmed: dict[Path, bytes] | None = None) -> None:
        """Make the directory what it was, but for the ``harmed`` files' contents."""
        shutil.rmtree(self.directory)
        for path, data in (self.files | (harmed or {})).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def changes(self) -> set[str]:
        """Name the files that are not what they were, are missing, or are new."""
        now = {path: path.read_bytes() for path in self.directory.rglob("*") if path.is_file()}
        return {path.name for path in now.keys() | self.files.keys() if now.get(path) != self.files.get(path)}
