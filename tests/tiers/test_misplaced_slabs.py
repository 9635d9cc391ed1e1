"""Slots and slabs in places where they do not belong: intact by themselves, and yet never a wrong hit."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from damage import Image
from disk_harness import Disk, key_of
from slots_on_disk import assert_only_lost, newest, settings, slots_on_disk

from tiering.errors import PermanentTierError


async def two_slabs(disk: Disk, model_name: str = "model") -> Image:
    """Fill two slabs of eight slots with chunks 0 to 15 in order, and return the files."""
    async with disk.opened(16, model_name=model_name, **settings(disk)) as tier:
        for number in range(16):
            await disk.store(tier, number)
    return Image(disk.root)


def test_two_slots_with_each_others_content(disk: Disk) -> None:
    async def scenario() -> None:
        await two_slabs(disk)
        async with disk.opened(16, **settings(disk)) as tier:
            for first, second in ((3, 4), (0, 15), (7, 8)):
                slots = newest(slots_on_disk(disk))
                contents = [
                    slots[number].path.read_bytes()[slots[number].offset :][: disk.slot_bytes]
                    for number in (first, second)
                ]
                for number, content in zip((first, second), reversed(contents), strict=True):
                    with slots[number].path.open("r+b") as file:
                        file.seek(slots[number].offset)
                        file.write(content)
            await assert_only_lost(disk, tier, {3, 4, 0, 15, 7, 8}, range(16), "swapped")
            assert tier.counters.corrupt == 6

    asyncio.run(scenario())


def test_two_slabs_with_each_others_name(disk: Disk) -> None:
    """With the index all is lost; without it all is found where it is now."""

    async def scenario() -> None:
        image = await two_slabs(disk)
        first, second = disk.slabs()
        swapped = {first: image.files[second], second: image.files[first]}
        image.put_back(swapped)
        async with disk.opened(16, **settings(disk)) as tier:
            await assert_only_lost(disk, tier, set(range(16)), range(16), "renamed slabs")
            assert tier.counters.corrupt == 16
        image.put_back(swapped)
        for path in disk.directory.glob("index.*"):
            path.unlink()
        async with disk.opened(16, **settings(disk)) as tier:
            await assert_only_lost(disk, tier, set(), range(16), "renamed slabs, no index")

    asyncio.run(scenario())


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_a_slab_of_another_namespace(disk: Disk, index: str) -> None:
    async def scenario() -> None:
        await two_slabs(disk, "other model")
        (foreign, _) = disk.slabs()
        data = foreign.read_bytes()
        shutil.rmtree(disk.root)
        await two_slabs(disk)
        (ours, _) = disk.slabs()
        ours.write_bytes(data)
        if index == "lost":
            for path in disk.directory.glob("index.*"):
                path.unlink()
        async with disk.opened(16, **settings(disk)) as tier:
            await assert_only_lost(disk, tier, set(range(8)), range(16), "foreign slab")
            assert tier.counters.corrupt == (8 if index == "kept" else 0)

    asyncio.run(scenario())


def test_an_old_slab_under_a_newer_index(disk: Disk) -> None:
    """A chunk stored anew in its old slot is told from its former self by the generation alone."""

    async def scenario() -> None:
        image = await two_slabs(disk)
        async with disk.opened(16, **settings(disk)) as tier:
            for number in (0, 1, 2):
                await tier.delete([key_of(number)])
                await disk.store(tier, number)
            assert {number: slot.offset for number, slot in newest(slots_on_disk(disk)).items() if number < 3} == {
                number: number * disk.slot_bytes for number in range(3)
            }
        old = disk.slabs()[0]
        old.write_bytes(image.files[old])
        async with disk.opened(16, **settings(disk)) as tier:
            await assert_only_lost(disk, tier, {0, 1, 2}, range(16), "old slab")
            assert tier.counters.corrupt == 3

    asyncio.run(scenario())


def test_a_slab_cut_off_at_any_page(disk: Disk) -> None:
    async def scenario() -> None:
        image = await two_slabs(disk)
        slab = disk.slabs()[0]
        data = image.files[slab]
        for end in range(0, len(data), 2048):
            image.put_back({slab: data[:end]})
            async with disk.opened(16, **settings(disk)) as tier:
                num_whole = end // disk.slot_bytes
                await assert_only_lost(disk, tier, set(range(num_whole, 8)), range(16), f"cut at {end}")
                assert all(await disk.store(tier, *range(16)))
                assert all(await disk.load(tier, *range(16)))

    asyncio.run(scenario())


VALUABLE = bytes(range(256)) * 4096
INTRUDERS: dict[str, Callable[[Path, Path], object]] = {
    "directory": lambda slab, _: slab.mkdir(),
    "symbolic link": lambda slab, valuable: slab.symlink_to(valuable),
    "pipe": lambda slab, _: os.mkfifo(slab),
}


@pytest.mark.parametrize("intrude", INTRUDERS.values(), ids=INTRUDERS)
def test_something_that_is_no_file_in_the_place_of_a_slab(
    disk: Disk, tmp_path: Path, intrude: Callable[[Path, Path], object]
) -> None:
    """The tier refuses to start, names the place and touches nothing; without the intruder it starts."""
    valuable = tmp_path / "valuable"
    valuable.write_bytes(VALUABLE)

    async def scenario() -> None:
        await two_slabs(disk)
        slab = disk.slabs()[0]
        slab.unlink()
        intrude(slab, valuable)
        with pytest.raises(PermanentTierError, match="slab-000000"):
            await disk.make(16, **settings(disk)).open()
        slab.rmdir() if slab.is_dir() else slab.unlink()
        async with disk.opened(16, **settings(disk)) as tier:
            await assert_only_lost(disk, tier, set(range(8)), range(16), "no slab")

    asyncio.run(scenario())
    assert valuable.read_bytes() == VALUABLE


@pytest.mark.parametrize("intrude", INTRUDERS.values(), ids=INTRUDERS)
def test_something_that_is_no_file_where_the_next_slab_would_be(
    disk: Disk, tmp_path: Path, intrude: Callable[[Path, Path], object]
) -> None:
    """Chunks for that slab are not stored; the other slab serves."""
    valuable = tmp_path / "valuable"
    valuable.write_bytes(VALUABLE)

    async def scenario() -> None:
        async with disk.opened(16, **settings(disk)) as tier:
            assert all(await disk.store(tier, *range(8)))
            intrude(disk.slabs()[0].with_name("slab-000001.kv"), valuable)
            assert not any(await disk.store(tier, *range(8, 16)))
            assert all(await disk.load(tier, *range(8)))
            assert tier.counters.write_errors == 8

    asyncio.run(scenario())
    assert valuable.read_bytes() == VALUABLE
