"""The index on disk: torn, damaged, outdated, missing, not to be written; and how it is kept short."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from disk_harness import Disk, index_is_written, key_of, keys_of, present

from tiering.errors import PermanentTierError
from tiers.disk.index_columns import IndexColumns
from tiers.disk.index_files import encode_snapshot, read_index, snapshot_path
from tiers.disk.slots import SlotTable


@pytest.mark.parametrize("harm", ["missing", "flipped", "empty"])
def test_without_a_usable_index_the_headers_are_scanned(disk: Disk, harm: str) -> None:
    async def scenario() -> None:
        async with disk.opened(4) as tier:
            await disk.store(tier, 1, 2, 3, 4)
            await disk.store(tier, 5)
        snapshot = snapshot_path(disk.directory)
        if harm == "missing":
            snapshot.unlink()
        elif harm == "empty":
            snapshot.write_bytes(b"")
        else:
            data = bytearray(snapshot.read_bytes())
            data[len(data) // 2] ^= 1
            snapshot.write_bytes(data)
        with pytest.raises(PermanentTierError, match=r"recover is strict.*index\.snapshot"):
            await disk.make(4, recover="strict").open()
        async with disk.opened(4) as tier:
            assert sorted(await present(tier)) == [1, 2, 3, 5]
            assert (await present(tier))[-1] == 5
            assert all(await disk.load(tier, 1, 2, 3, 5))
        async with disk.opened(4, recover="strict") as tier:
            assert (await tier.usage()).num_chunks == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [0, 1, 30, 36, 200])
def test_a_torn_journal_tail_costs_only_the_tail(disk: Disk, cut: int) -> None:
    async def scenario() -> None:
        tier = disk.make()
        await tier.open()
        await disk.store(tier, 1, 2, 3)
        await tier.delete([key_of(3)])
        await disk.store(tier, 4)
        await index_is_written(tier)
        before = {path: path.read_bytes() for path in disk.directory.glob("index.*")}
        await tier.close()
        for path in disk.directory.glob("index.*"):
            path.unlink()
        for path, data in before.items():
            path.write_bytes(data[: len(data) - cut] if path.suffix == ".journal" else data)
        async with disk.opened() as tier:
            expected = {0: [2, 1, 4], 1: [2, 1], 30: [2, 1], 36: [2, 1], 200: [3, 2]}[cut]
            assert await present(tier) == expected
            # The slot of chunk 3 was used again for chunk 4.
            assert await disk.load(tier, *expected) == [number != 3 for number in expected]

    asyncio.run(scenario())


def test_an_index_older_than_the_slabs_is_a_miss_not_a_wrong_hit(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(2) as tier:
            await disk.store(tier, 1, 2)
        old = {path: path.read_bytes() for path in disk.directory.glob("index.*")}
        async with disk.opened(2) as tier:
            await disk.store(tier, 3)
        for path in disk.directory.glob("index.*"):
            path.unlink()
        for path, data in old.items():
            path.write_bytes(data)
        with pytest.raises(PermanentTierError, match="does not hold chunk"):
            await disk.make(2, recover="strict").open()
        async with disk.opened(2) as tier:
            assert await present(tier) == [2, 1]
            assert await disk.load(tier, 1, 2) == [True, False]
            assert await present(tier) == [1]

    asyncio.run(scenario())


def test_a_journal_that_cannot_be_written_costs_nothing_now_and_is_mended_by_a_snapshot(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(snapshot_every=10**6) as tier:
            next(disk.directory.glob("*.journal")).unlink()
            assert all(await disk.store(tier, 1, 2))
            assert all(await disk.load(tier, 1, 2))
            await index_is_written(tier)
            assert tier.counters.journal_errors == 1
        async with disk.opened() as tier:
            assert await present(tier) == [2, 1]

    asyncio.run(scenario())


def test_snapshots_replace_journals(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(4, snapshot_every=5) as tier:
            for number in range(40):
                await disk.store(tier, number)
            await index_is_written(tier)
            journals = list(disk.directory.glob("*.journal"))
            assert len(journals) == 1
            assert journals[0].stat().st_size < 20 * 100
        async with disk.opened(4) as tier:
            assert await present(tier) == [36, 37, 38, 39]

    asyncio.run(scenario())


def test_an_index_of_many_chunks_comes_back_whole(tmp_path: Path) -> None:
    numbers = np.arange(100_000, dtype=np.uint64)
    chunks = IndexColumns(keys_of(*range(100_000)), numbers[::-1].copy(), numbers + 1, numbers + 5)
    identity = bytes(range(16))
    snapshot_path(tmp_path).write_bytes(encode_snapshot(identity, 3, chunks))
    index = read_index(tmp_path, identity)
    assert (index.epoch, index.problems) == (3, [])
    table = SlotTable(100_000)
    table.restore(0, index.chunks)
    restored = table.freeze(0).columns()
    assert restored.keys == chunks.keys
    assert (restored.slots == chunks.slots).all()
    assert (restored.generations == chunks.generations).all()
