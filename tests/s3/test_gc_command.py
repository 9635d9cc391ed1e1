"""``tiering gc objects`` on real stores: what it removes, what it never touches, and what it says."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from object_harness import BUCKET, EVERYWHERE, ROW_BYTES, Place, back_door, key_of, load, namespace, store

from tiering.cli.app import main
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault
from tiers.s3.object_format import HEADER_BYTES

OBJECT_BYTES = HEADER_BYTES + ROW_BYTES
OTHER = namespace(model_name="other")

on_stores = pytest.mark.parametrize("place", ["s3fs-seaweedfs", "obstore-seaweedfs", "file"], indirect=True)


@dataclass(frozen=True)
class Ran:
    code: int
    output: str
    errors: str


Gc = Callable[..., Ran]


@pytest.fixture
def gc(place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gc:
    """Run the command over ``place``."""

    def run(*options: str, tier: dict[str, Any] | None = None, **settings: Any) -> Ran:
        file = configuration(tmp_path, tier or place.settings | settings)
        monkeypatch.setattr(sys, "argv", ["tiering", "gc", "objects", str(file), *options])
        with pytest.raises(SystemExit) as exited:
            main()
        output, errors = capsys.readouterr()
        assert isinstance(exited.value.code, int)
        return Ran(exited.value.code, output, errors)

    return run


def configuration(directory: Path, *tiers: dict[str, Any]) -> Path:
    file = directory / "tiering.yaml"
    file.write_text(json.dumps({"cpu_bytes_to_use": "1MiB", "secondary_tier_configs": tiers}))
    return file


def fill(place: Place, *numbers: int, **settings: Any) -> None:
    async def scenario() -> None:
        async with place.opened(**settings) as tier:
            assert all(await store(tier, *numbers))

    asyncio.run(scenario())


def neighbours(place: Place) -> list[Place]:
    """Return places that nobody may touch who cleans ``place``: one beside it, one within it."""
    return [replace(place, directory=f"{place.directory}{suffix}") for suffix in ("x", "/team")]


def everything(place: Place) -> dict[str, bytes]:
    return {name: place.read(name) for name in place.names()}


@on_stores
def test_nothing_but_our_own_objects_below_the_prefix_is_touched(place: Place, gc: Gc) -> None:
    fill(place, *range(5))
    fill(place, *range(5, 8), name_space=OTHER)
    ours = everything(place)
    for neighbour in neighbours(place):
        for name, content in ours.items():
            neighbour.write(name, content)
    chunk = place.chunk(0)
    namespace_name, fan_out, key = chunk.split("/")
    foreign = [
        "readme.txt",
        f"{namespace_name}/readme.txt",
        f"{namespace_name}/{fan_out}/not-a-key",
        f"{namespace_name}/{fan_out}/{key}.bak",
        f"{namespace_name}/{(int(fan_out, 16) + 1) % 256:02x}/{key}",
        f"{namespace_name.upper()}X/{fan_out}/{key}",
        f"{key}/namespace.json",
        "x.unfinished",
    ]
    for name in foreign:
        place.write(name, b"not ours")
    others = everything(place).keys() - ours.keys()

    ran = gc("--older-than", "0s", "--leftovers-older-than", "0s")
    assert (ran.code, ran.errors) == (0, "")
    total = f"{8 * OBJECT_BYTES / 1024:.1f} KiB"
    assert ran.output.splitlines()[-1] == (
        f"tier {place.settings['type']}: removed 8 of 8 chunks, {total} of {total}; 0 unfinished writes; "
        "2 descriptions of empty namespaces"
    )
    assert everything(place).keys() == others
    assert {place.read(name) for name in foreign} == {b"not ours"}
    for neighbour in neighbours(place):
        assert {name: neighbour.read(name) for name in ours} == ours


@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_a_dry_run_removes_nothing_and_says_the_same(place: Place, gc: Gc) -> None:
    fill(place, *range(5))
    fill(place, 7, name_space=OTHER)
    before = everything(place)
    options = ("--max-size", str(3 * OBJECT_BYTES), "--namespace", namespace().fingerprint.hex(), "--format", "json")
    (would,) = json.loads(gc(*options, "--dry-run").output)
    assert everything(place) == before
    (did,) = json.loads(gc(*options).output)
    assert did | {"dry_run": True} == would
    (ours,) = [entry for entry in did["namespaces"] if entry["namespace"] == namespace().fingerprint.hex()]
    assert (ours["chunks"], ours["bytes"]) == (5, 5 * OBJECT_BYTES)
    assert (ours["removed_chunks"], ours["removed_bytes"]) == (2, 2 * OBJECT_BYTES)
    assert len(before) - len(place.names()) == 2
    assert gc(*options).code == 0
    assert len(before) - len(place.names()) == 2


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_the_oldest_go_first(place: Place, gc: Gc) -> None:
    fill(place, *range(6))
    ages = {0: 10, 1: 60, 2: 30, 3: 50, 4: 20, 5: 40}
    for number, days in ages.items():
        when = time.time() - days * 86400
        os.utime(f"{place.directory}/{place.chunk(number)}", (when, when))
    assert gc("--older-than", "45d").code == 0
    assert [number for number in ages if place_has(place, number)] == [0, 2, 4, 5]
    assert gc("--max-size", str(2 * OBJECT_BYTES)).code == 0
    assert [number for number in ages if place_has(place, number)] == [0, 4]
    assert gc().code == 0
    assert len(place.chunks()) == 2


def place_has(place: Place, number: int) -> bool:
    return any(name.endswith(key_of(number).hex()) for name in place.chunks())


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_files_of_writes_that_never_ended_go_when_they_are_old(place: Place, gc: Gc) -> None:
    fill(place, 1)
    directory = Path(place.directory) / place.chunk(1).rpartition("/")[0]
    old, young = directory / f"{'a' * 32}.unfinished", directory.parent / f"{'b' * 32}.unfinished"
    for file in (old, young):
        file.write_bytes(b"half")
    when = time.time() - 2 * 86400
    os.utime(old, (when, when))
    assert "; 1 unfinished writes; " in gc().output
    assert (old.exists(), young.exists()) == (False, True)
    assert "; 1 unfinished writes; " in gc("--leftovers-older-than", "0s").output
    assert not young.exists()
    assert len(place.chunks()) == 1


@pytest.mark.parametrize("place", ["s3fs-seaweedfs"], indirect=True)
def test_uploads_that_never_ended_go_when_they_are_old(place: Place, gc: Gc) -> None:
    fill(place, 1)
    client = back_door(place.server)
    name = place.chunk(1)
    names = {f"{directory}/{name}" for directory in (place.directory, f"{place.directory}x")} | {
        f"{place.directory}/theirs"
    }
    for key in names:
        upload = client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload, PartNumber=1, Body=b"half")

    def unfinished() -> set[str]:
        listed = client.list_multipart_uploads(Bucket=BUCKET, Prefix=place.directory).get("Uploads", ())
        return {upload["Key"] for upload in listed}

    assert unfinished() == names
    assert "; 0 unfinished writes; " in gc("--older-than", "1d").output
    assert unfinished() == names
    assert "; 1 unfinished writes; " in gc("--leftovers-older-than", "0s").output
    assert unfinished() == names - {f"{place.directory}/{name}"}
    assert len(place.chunks()) == 1


@on_stores
def test_an_engine_that_loads_meanwhile_has_misses_only(place: Place, tmp_path: Path) -> None:
    numbers = range(60)
    fill(place, *numbers)
    file = configuration(tmp_path, place.settings)

    async def scenario() -> None:
        async with place.opened() as tier:
            assert all(await load(tier, *numbers))
            command = (sys.executable, "-m", "tiering", "gc", "objects", str(file), "--older-than", "0s")
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            ended = asyncio.create_task(process.communicate())
            while not ended.done():
                await load(tier, *numbers)
            output, _ = await ended
            assert process.returncode == 0
            assert b"removed 60 of 60 chunks" in output
            assert await load(tier, *numbers) == [False] * 60
            assert (tier.counters.corrupt, tier.counters.load_errors) == (0, 0)
            assert await store(tier, 1) == [True]
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize("place", ["s3fs-seaweedfs"], indirect=True)
def test_objects_that_cannot_be_removed_are_counted(place: Place, gc: Gc) -> None:
    fill(place, 1, 2, 3)
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        with proxy.during(HttpFault("DELETE", path=key_of(2).hex(), status=403, code="AccessDenied")):
            ran = gc("--older-than", "0s", endpoint_url=proxy.url)
        assert ran.code == 1
        assert "removed 2 of 3 chunks" in ran.output
        assert ran.output.endswith("; 1 objects could not be removed\n")
        assert len(place.chunks()) == 1
        with proxy.during(HttpFault("DELETE", status=403, code="AccessDenied")):
            ran = gc("--older-than", "0s", endpoint_url=proxy.url)
        assert (ran.code, ran.output) == (1, "")
        assert "DELETE" in ran.errors
        assert ran.errors.count("\n") == 1


@pytest.mark.parametrize("place", ["s3fs-seaweedfs", "obstore-seaweedfs"], indirect=True)
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"bucket": "no-such-bucket"}, "no-such-bucket"),
        ({"secret_access_key": "wrong-secret"}, "403"),
        ({"endpoint_url": "http://127.0.0.1:9", "retry": {"attempts": 1}}, "127.0.0.1:9"),
    ],
)
def test_a_store_that_cannot_be_listed_is_one_line(gc: Gc, wrong: dict[str, Any], says: str) -> None:
    ran = gc("--older-than", "0s", **wrong)
    assert (ran.code, ran.output) == (1, "")
    assert ran.errors.startswith("error: ")
    assert ran.errors.count("\n") == 1
    assert says in ran.errors
    assert "wrong-secret" not in ran.errors


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_directory_that_cannot_be_read_is_named(
    place: Place, gc: Gc, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    fill(place, 1, 2, 3)
    directory = str(Path(place.directory, *place.chunk(1).split("/")[:depth]))
    scan = os.scandir

    def refusing(path: str) -> Any:  # root may read whatever its mode is
        if path == directory:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return scan(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refusing)
        ran = gc("--older-than", "0s")
    assert (ran.code, ran.output) == (1, "")
    assert ran.errors == f"error: {place.settings['url']}: list {directory}: PermissionError\n"
    assert len(place.chunks()) == 3


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_a_path_through_a_file_is_an_error_and_a_place_not_used_yet_is_empty(place: Place, gc: Gc) -> None:
    Path(place.directory, "file").write_bytes(b"")
    ran = gc(url=f"{place.settings['url']}/file/below")
    assert (ran.code, ran.output) == (1, "")
    assert ran.errors.endswith("/file/below: NotADirectoryError, ENOTDIR\n")
    ran = gc(url=f"{place.settings['url']}/later")
    assert (ran.code, ran.errors) == (0, "")
    assert "removed 0 of 0 chunks" in ran.output


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_wrong_usage(gc: Gc, tmp_path: Path) -> None:
    for options, says in (
        (("--older-than", "soon"), "soon"),
        (("--max-size", "10GB"), "10GiB"),
        (("--namespace", "zz"), "is no fingerprint"),
        (("--tier", "s3"), "allowed: fsspec"),
    ):
        ran = gc(*options)
        assert (ran.code, ran.output) == (2, "")
        assert says in ran.errors
    ran = gc(tier={"type": "disk", "root_dirs": [str(tmp_path / "disk")], "capacity": "1GiB"})
    assert (ran.code, ran.output) == (2, "")
    assert "no tier whose store can be cleaned" in ran.errors
    assert not (tmp_path / "disk").exists()
