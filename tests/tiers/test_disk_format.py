"""``docs/disk-format.md`` and the bytes on disk say the same: read here by the tables of the document alone."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import struct
from pathlib import Path

import pytest
import xxhash
from disk_harness import Disk, bytes_of, index_is_written, key_of, keys_of, namespace

DOCUMENT = Path(__file__).parents[2] / "docs" / "disk-format.md"
NUMBERS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}
ROW_BYTES = 5000


def table(title: str) -> dict[str, tuple[int, int | None]]:
    """Return the table whose header ends in ``title``: offset and length of each field, by its first words."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(
        number for number, line in enumerate(lines) if re.fullmatch(rf"\| offset \| bytes \| {title} \|", line)
    )
    fields = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        offset, length, meaning = (cell.strip() for cell in line.strip("|").split("|", 2))
        name = re.split(r"[:,;]| of the ", meaning)[0].strip("` ")
        fields[name] = (int(offset), None if length == ".." else int(length))
    return fields


def field(data: bytes, fields: dict[str, tuple[int, int | None]], name: str) -> int:
    offset, length = fields[name]
    assert length is not None
    return int(struct.unpack_from(NUMBERS[length], data, offset)[0])


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "root", ROW_BYTES)


def test_a_slab(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(6, slab_bytes=4 * disk.slot_bytes) as tier:
            await disk.store(tier, *range(5))

    asyncio.run(scenario())
    fields = table("header page")
    assert len(fields) == 9
    assert [path.name for path in disk.slabs()] == ["slab-000000.kv", "slab-000001.kv"]
    slots = [
        path.read_bytes()[start : start + disk.slot_bytes]
        for path, count in zip(disk.slabs(), (4, 1), strict=True)
        for start in range(0, count * disk.slot_bytes, disk.slot_bytes)
    ]
    generations = []
    for number, slot in enumerate(slots):
        magic_at, magic_bytes = fields["KVTSLOT\\0"]
        assert slot[magic_at:][:magic_bytes] == b"KVTSLOT\0"
        assert field(slot, fields, "format version") == 1
        key_bytes = field(slot, fields, "length")
        fingerprint_at, fingerprint_bytes = fields["namespace fingerprint"]
        assert slot[fingerprint_at:][:fingerprint_bytes] == namespace(ROW_BYTES).fingerprint
        generations.append(field(slot, fields, "generation"))
        assert field(slot, fields, "row_bytes") == ROW_BYTES
        row = slot[4096:][:ROW_BYTES]
        assert row == bytes_of(key_of(number), ROW_BYTES)
        assert field(slot, fields, "checksum") == xxhash.xxh3_64_intdigest(row)
        key_at = fields["key"][0]
        assert slot[key_at:][:key_bytes] == key_of(number)
        page_checksum_at = fields["checksum of bytes 0 to 4087"][0]
        assert not any(slot[key_at + key_bytes : page_checksum_at])
        assert field(slot, fields, "checksum of bytes 0 to 4087") == xxhash.xxh3_64_intdigest(slot[:page_checksum_at])
        assert not any(slot[4096 + ROW_BYTES :]), "padding is zeros"
    assert generations == sorted(set(generations))


def test_the_index(disk: Disk) -> None:
    async def scenario() -> bytes:
        async with disk.opened(6) as tier:
            await disk.store(tier, 1, 2, 3)
        async with disk.opened(6) as tier:
            await tier.delete(keys_of(2))
            await disk.store(tier, 4)
            await index_is_written(tier)
            (journal,) = disk.directory.glob("index.*.journal")
            assert journal.name == "index.000000000003.journal"
            return journal.read_bytes()

    journal = asyncio.run(scenario())
    fields = table("start of an index file")
    layout = json.loads((disk.directory / "layout.json").read_text())
    assert layout == {"slot_bytes": disk.slot_bytes, "slots_per_slab": 2**30 // disk.slot_bytes, "format_version": 1}
    words = f"{layout['slot_bytes']} {layout['slots_per_slab']}".encode()
    identity = hashlib.blake2b(namespace(ROW_BYTES).fingerprint + words, digest_size=16).digest()

    snapshot = (disk.directory / "index.snapshot").read_bytes()
    for data, magic, epoch, count in ((snapshot, b"KVTSNAP\0", 4, 3), (journal, b"KVTJRNL\0", 3, 0)):
        assert data[:8] == magic
        assert field(data, fields, "version") == 1
        assert data[fields["identity"][0] :][:16] == identity
        assert field(data, fields, "epoch") == epoch
        assert field(data, fields, "number of chunks (snapshot) or zero (journal)") == count

    slots = struct.unpack_from("<3Q", snapshot, 48)
    generations = struct.unpack_from("<3Q", snapshot, 72)
    assert struct.unpack_from("<3H", snapshot, 96) == (36, 36, 36)
    keys = [snapshot[102 + 36 * place :][:36] for place in range(3)]
    recency = struct.unpack_from("<3Q", snapshot, 102 + 3 * 36)
    assert len(snapshot) == 102 + 3 * 36 + 24 + 8
    assert struct.unpack_from("<Q", snapshot, len(snapshot) - 8) == (xxhash.xxh3_64_intdigest(snapshot[:-8]),)
    assert keys == keys_of(3, 1, 4)
    assert slots == (2, 0, 1)
    assert list(recency) == sorted(set(recency))
    data = disk.slabs()[0].read_bytes()
    headers = [struct.unpack_from("<Q", data, slot * disk.slot_bytes + 32)[0] for slot in slots]
    assert list(generations) == headers

    records = table("journal record")
    size = 24 + 36 + 8
    assert len(journal) == 48 + 2 * size
    for record, kind, key, slot in ((journal[48:][:size], 2, key_of(2), 0), (journal[48 + size :], 1, key_of(4), 1)):
        assert field(record, records, "checksum") == xxhash.xxh3_64_intdigest(record[8:])
        assert field(record, records, "kind") == kind
        assert field(record, records, "length") == 36
        assert field(record, records, "slot") == slot
        assert field(record, records, "generation") == (headers[2] if kind == 1 else 0)
        assert record[records["key"][0] :] == key


def test_what_is_listed_is_what_is_there(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(6) as tier:
            await disk.store(tier, 1)

    asyncio.run(scenario())
    listed = re.search(r"```\n<root>/<fingerprint>/\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert listed is not None
    patterns = [re.sub(r"\d{3,}", r"\\d+", line.split()[0]) for line in listed[1].splitlines()]
    for path in disk.directory.iterdir():
        assert any(re.fullmatch(pattern, path.name) for pattern in patterns), path.name
