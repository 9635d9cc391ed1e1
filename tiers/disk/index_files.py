"""The bytes of a root's index on disk: a snapshot of all its chunks, and journals of the changes since.

Both are hints. A slot's own header and checksum decide whether a chunk is really there, so these files are written
without fsync and need no order between them and the slabs. ``docs/disk-format.md`` has the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import xxhash

from tiering.keys import OffloadKey
from tiers.disk.index_columns import KEYS_AT_A_TIME, IndexColumns

__all__ = [
    "RecoveredIndex",
    "UnreadableIndexError",
    "encode_deletes",
    "encode_journal_start",
    "encode_puts",
    "encode_snapshot",
    "journal_path",
    "last_epoch",
    "read_index",
    "remove_index",
    "snapshot_path",
]

_VERSION = 1
_START = struct.Struct("<8sII16sQQ")
_SNAPSHOT_MAGIC = b"KVTSNAP\0"
_JOURNAL_MAGIC = b"KVTJRNL\0"
_CHECKSUM = struct.Struct("<Q")
_RECORD = struct.Struct("<HH4xQQ")
_PUT, _DELETE = 1, 2


class UnreadableIndexError(Exception):
    """There is no usable snapshot; the message says why."""


@dataclass(frozen=True, slots=True)
class RecoveredIndex:
    """What the index files say.

    Attributes:
        chunks: the chunks.
        epoch: the highest epoch seen.
        problems: damage met, one sentence each.
    """

    chunks: IndexColumns
    epoch: int
    problems: list[str]


def snapshot_path(directory: Path) -> Path:
    """Return where the snapshot lies."""
    return directory / "index.snapshot"


def journal_path(directory: Path, epoch: int) -> Path:
    """Return where the journal lies whose records follow the snapshot of ``epoch``."""
    return directory / f"index.{epoch:012d}.journal"


def encode_snapshot(identity: bytes, epoch: int, chunks: IndexColumns) -> bytes:
    """Return a snapshot file.

    ``identity`` is 16 bytes naming namespace and layout: an index of another one is not believed.
    """
    body = b"".join(
        (
            _START.pack(_SNAPSHOT_MAGIC, _VERSION, 0, identity, epoch, len(chunks)),
            chunks.slots.astype("<u8").tobytes(),
            chunks.generations.astype("<u8").tobytes(),
            np.fromiter(map(len, chunks.keys), "<u2", len(chunks)).tobytes(),
            *(b"".join(chunks.keys[start : start + KEYS_AT_A_TIME]) for start in range(0, len(chunks), KEYS_AT_A_TIME)),
            chunks.recency.astype("<u8").tobytes(),
        )
    )
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def encode_journal_start(identity: bytes, epoch: int) -> bytes:
    """Return the first bytes of a journal."""
    return _START.pack(_JOURNAL_MAGIC, _VERSION, 0, identity, epoch, 0)


def encode_puts(chunks: Iterable[tuple[OffloadKey, int, int]]) -> list[bytes]:
    """Return a journal record for each key, slot within this root, and generation: the chunk is now there."""
    records = [_RECORD.pack(_PUT, len(key), slot, generation) + key for key, slot, generation in chunks]
    return [_CHECKSUM.pack(xxhash.xxh3_64_intdigest(record)) + record for record in records]


def encode_deletes(keys: Iterable[OffloadKey]) -> list[bytes]:
    """Return a journal record for each key, saying that the chunk is gone."""
    records = [_RECORD.pack(_DELETE, len(key), 0, 0) + key for key in keys]
    return [_CHECKSUM.pack(xxhash.xxh3_64_intdigest(record)) + record for record in records]


def read_index(directory: Path, identity: bytes) -> RecoveredIndex:
    """Return the index: the snapshot, and on top of it all journals from its epoch on. Blocks.

    Raises:
        UnreadableIndexError: there is no intact snapshot of this ``identity``.
        OSError: as the system says.
    """
    snapshot, first_epoch = _read_snapshot(snapshot_path(directory), identity)
    replay = _Replay(snapshot)
    problems: list[str] = []
    journals = [epoch for epoch in _journal_epochs(directory) if epoch >= first_epoch]
    for epoch in journals:
        path = journal_path(directory, epoch)
        data = path.read_bytes()
        if data[: _START.size] != encode_journal_start(identity, epoch):
            problems.append(f"{path} is no journal of this directory's layout")
            continue
        end = replay.follow(data)
        if end != len(data):
            problems.append(f"{path} is damaged or torn from byte {end} on, of {len(data)}")
    return RecoveredIndex(replay.chunks(), max(journals, default=first_epoch), problems)


def last_epoch(directory: Path) -> int:
    """Return the highest epoch of which there is a journal, or 0. Blocks."""
    return max(_journal_epochs(directory), default=0)


def _journal_epochs(directory: Path) -> list[int]:
    numbers = (path.name.split(".")[1] for path in directory.glob("index.*.journal"))
    return sorted(int(number) for number in numbers if number.isdecimal())


def _read_snapshot(path: Path, identity: bytes) -> tuple[IndexColumns, int]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise UnreadableIndexError(f"{path} is missing") from None
    if len(data) < _START.size + _CHECKSUM.size:
        raise UnreadableIndexError(f"{path} is too short for a snapshot")
    body = memoryview(data)[: -_CHECKSUM.size]
    if _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)) != data[-_CHECKSUM.size :]:
        raise UnreadableIndexError(f"{path} has a wrong checksum")
    magic, version, _, owner, epoch, count = _START.unpack_from(body)
    if (magic, version) != (_SNAPSHOT_MAGIC, _VERSION):
        raise UnreadableIndexError(f"{path} has format version {version}; this release reads {_VERSION}")
    if owner != identity:
        raise UnreadableIndexError(f"{path} was written for another slot layout")
    key_bytes = np.frombuffer(body, "<u2", count, _START.size + 16 * count).tolist()
    bounds = list(accumulate(key_bytes, initial=_START.size + 18 * count))
    keys = [OffloadKey(data[start:end]) for start, end in pairwise(bounds)]
    slots, generations, recency = (
        np.frombuffer(body, "<u8", count, start).astype(np.uint64)
        for start in (_START.size, _START.size + 8 * count, bounds[-1])
    )
    return IndexColumns(keys, slots, generations, recency), epoch


class _Replay:
    """Journals on top of a snapshot."""

    def __init__(self, snapshot: IndexColumns) -> None:
        self._snapshot = snapshot
        self._has_records = False
        self._slot_of: dict[OffloadKey, int] = {}
        self._key_at: dict[int, OffloadKey] = {}
        self._last_recency = int(snapshot.recency.max(initial=0))
        self._written: dict[int, tuple[int, int]] = {}

    def follow(self, data: bytes) -> int:
        """Apply the intact records of a journal; return where they end."""
        view = memoryview(data)
        at = _START.size
        while at + _CHECKSUM.size + _RECORD.size <= len(data):
            start = at + _CHECKSUM.size
            kind, key_bytes, slot, generation = _RECORD.unpack_from(data, start)
            end = start + _RECORD.size + key_bytes
            if end > len(data) or _CHECKSUM.unpack_from(data, at) != (xxhash.xxh3_64_intdigest(view[start:end]),):
                break
            self._apply(kind, OffloadKey(data[end - key_bytes : end]), slot, generation)
            at = end
        return at

    def _apply(self, kind: int, key: OffloadKey, slot: int, generation: int) -> None:
        if not self._has_records:
            self._has_records = True
            self._slot_of.update(zip(self._snapshot.keys, self._snapshot.slots.tolist(), strict=True))
            self._key_at.update(zip(self._slot_of.values(), self._slot_of, strict=True))
        before = self._slot_of.pop(key, None)
        if before is not None:
            del self._key_at[before]
        if kind == _PUT:
            displaced = self._key_at.get(slot)
            if displaced is not None:
                del self._slot_of[displaced]
            self._slot_of[key] = slot
            self._key_at[slot] = key
            self._last_recency = max(self._last_recency + 1, generation)
            self._written[slot] = (generation, self._last_recency)

    def chunks(self) -> IndexColumns:
        """Return what is there in the end."""
        if not self._has_records:
            return self._snapshot
        written = np.array(list(self._written.values()), np.uint64).reshape(-1, 2)
        written_slots = np.fromiter(self._written, np.intp, len(self._written))
        snapshot_slots = self._snapshot.slots.astype(np.intp)
        by_slot = np.zeros((2, 1 + max(written_slots.max(initial=0), snapshot_slots.max(initial=0))), np.uint64)
        by_slot[:, snapshot_slots] = self._snapshot.generations, self._snapshot.recency
        by_slot[:, written_slots] = written.T
        slots = np.fromiter(self._slot_of.values(), np.uint64, len(self._slot_of))
        generations, recency = by_slot[:, slots.astype(np.intp)]
        return IndexColumns(list(self._slot_of), slots, generations, recency)


def remove_index(directory: Path) -> None:
    """Remove all index files. Blocks.

    Raises:
        OSError: as the system says; what is left is no index that would be believed.
    """
    # A snapshot without its journals would be believed.
    for path in [snapshot_path(directory), *directory.glob("index.*")]:
        path.unlink(missing_ok=True)
