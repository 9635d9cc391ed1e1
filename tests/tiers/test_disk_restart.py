"""What a later run finds: after a clean stop, after a kill, with other settings; and who may be the later run."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from disk_harness import Disk, key_of, present

from tiering.errors import PermanentTierError

CHILD = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from disk_harness import Disk, key_of
async def main(root, start):
    disk = Disk(Path(root))
    tier = disk.make(60, snapshot_every=37)
    await tier.open()
    print("open", flush=True)
    number = int(start)
    while True:
        await disk.store(tier, *(n % 200 for n in range(number, number + 5)))
        print("stored", flush=True)
        number += 3
asyncio.run(main(*sys.argv[2:]))
"""


def child(root: Path, start: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(root), str(start)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


def test_a_clean_restart_keeps_chunks_and_recency(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1, 2, 3, 4)
            await disk.load(tier, 3)
            await tier.delete([key_of(2)])
        async with disk.opened() as tier:
            assert await present(tier) == [4, 1, 3]
            assert await disk.load(tier, 1, 2, 3, 4) == [True, False, True, True]
            assert tier.describe().endswith("8 slots, 3 chunks recovered")

    asyncio.run(scenario())


def test_killed_at_random_points(disk: Disk) -> None:
    """Each later run finds every key exactly or not at all, and nothing but the tier's own files."""
    draw = random.Random(7)
    recovered = 0

    async def check() -> None:
        nonlocal recovered
        async with disk.opened(60) as tier:
            recovered += len(await present(tier))
            await disk.load(tier, *range(200))

    for round_idx in range(5):
        with child(disk.root, round_idx * 40) as process:
            for _ in range(draw.randrange(20, 100)):
                assert process.stdout is not None
                assert process.stdout.readline() == "stored\n"
            os.kill(process.pid, signal.SIGKILL)
        asyncio.run(check())
    assert recovered > 0
    names = {path.name for path in disk.directory.iterdir() if path.suffix != ".journal"}
    assert names == {"index.snapshot", "layout.json", "namespace.json", "owner.lock", "slab-000000.kv"}
    assert disk.slab_bytes_on_disk() <= 60 * disk.slot_bytes


def test_a_second_owner_is_refused_with_the_pid_of_the_first(disk: Disk) -> None:
    async def scenario() -> None:
        with pytest.raises(PermanentTierError, match=f"in use by process {process.pid};"):
            await disk.make(60).open()

    with child(disk.root, 0) as process:
        asyncio.run(scenario())
        os.kill(process.pid, signal.SIGKILL)

    async def afterwards() -> None:
        async with disk.opened(60):
            pass

    asyncio.run(afterwards())


def test_a_refused_owner_gives_its_other_roots_back(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "taken")

    async def scenario() -> None:
        num_fds = len(os.listdir("/proc/self/fd"))
        async with disk.opened():
            both = disk.make(root_dirs=[tmp_path / "free", disk.root])
            with pytest.raises(PermanentTierError):
                await both.open()
            async with disk.opened(root_dirs=[tmp_path / "free"]):
                pass
        assert len(os.listdir("/proc/self/fd")) == num_fds

    asyncio.run(scenario())


def test_tc_43_another_namespace_in_the_same_root_is_never_found(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(model_name="first") as tier:
            await disk.store(tier, 1)
            async with disk.opened(model_name="second") as other:
                assert await disk.load(other, 1) == [False]
        directories = sorted(path for path in disk.root.iterdir())
        assert len(directories) == 2
        stored = next(path for path in directories if list(path.glob("slab-*")))
        assert json.loads((stored / "namespace.json").read_text())["model_name"] == "first"
        # Even a slab carried over by hand is no hit, with the foreign index and without.
        other_directory = next(path for path in directories if path != stored)
        (stored / "slab-000000.kv").rename(other_directory / "slab-000000.kv")
        for index_file in other_directory.glob("index.*"):
            index_file.unlink()
        async with disk.opened(model_name="second") as other:
            assert await present(other) == []

    asyncio.run(scenario())


def test_recover_none_starts_empty(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
        async with disk.opened(recover="none") as tier:
            assert await disk.load(tier, 1) == [False]
            assert disk.slabs() == []

    asyncio.run(scenario())


def test_other_roots_and_other_slab_sizes_find_what_is_there(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    a, b = tmp_path / "a", tmp_path / "b"

    async def scenario() -> None:
        async with disk.opened(8, root_dirs=[a, b]) as tier:
            await disk.store(tier, *range(8))
        async with disk.opened(8, root_dirs=[b, a], slab_bytes=2 * disk.slot_bytes) as tier:
            assert await disk.load(tier, *range(8)) == [True] * 8
        async with disk.opened(8, root_dirs=[a]) as tier:
            found = await present(tier)
            assert len(found) == 4
            assert await disk.load(tier, *found) == [True] * 4

    asyncio.run(scenario())


@pytest.mark.parametrize("layout", [{"format_version": 2, "slot_bytes": 12288, "slots_per_slab": 8}, {}, [1]])
def test_a_directory_of_another_format_is_set_aside(
    disk: Disk, layout: object, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with disk.opened() as tier:
            await disk.store(tier, 1)
        (disk.directory / "layout.json").write_text(json.dumps(layout))
        contents = {path.name: path.read_bytes() for path in disk.directory.iterdir() if path.name != "owner.lock"}
        with pytest.raises(PermanentTierError, match="another format"):
            await disk.make(recover="strict").open()
        async with disk.opened() as tier:
            assert await disk.load(tier, 1) == [False]
            assert await disk.store(tier, 1) == [True]
        aside = disk.directory.with_name(disk.directory.name + ".set-aside-0")
        assert {path.name: path.read_bytes() for path in aside.iterdir() if path.name != "owner.lock"} == contents
        assert f"{disk.directory} holds slabs of another format; it was set aside as {aside}" in caplog.text

    asyncio.run(scenario())
