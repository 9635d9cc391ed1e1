"""Several processes on one bucket, forks, ends without warning, and servers that go away and come back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from object_harness import BUCKET, Place, keys_of, load, new_server, settings_for, store
from tier_program import NUM_KEYS

from tiering.errors import TemporaryTierError
from tiering.testing.object_servers import ObjectServer
from tiering.testing.resource_watch import ResourceWatch

PROGRAM = Path(__file__).with_name("tier_program.py")


def run(what: str, place: Place, *arguments: str, timeout_seconds: float = 30) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), what, json.dumps(place.settings), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)


@contextmanager
def started(what: str, place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), what, json.dumps(place.settings), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def let_go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("place", ["obstore-seaweedfs", "file"], indirect=True)
def test_engines_that_write_the_same_keys_at_once(place: Place) -> None:
    num_rounds = 3
    with (
        started("reader", place) as reader,
        started("writer", place, "0", str(num_rounds)) as one,
        started("writer", place, "1", str(num_rounds)) as two,
        started("writer", place, "2", str(num_rounds)) as three,
    ):
        writers = (one, two, three)
        for _ in range(num_rounds):
            assert [line_of(process) for process in writers] == ["ready"] * 3
            for process in writers:
                let_go_on(process)
        for process in writers:
            assert line_of(process).startswith("hits ")
            assert process.wait(20) == 0
        assert reader.stdin is not None
        assert line_of(reader) == "ready"
        reader.stdin.close()
        assert line_of(reader).startswith("hits ")
        assert reader.wait(20) == 0
    assert len(place.chunks()) == NUM_KEYS


@pytest.mark.parametrize("place", ["s3fs-seaweedfs", "obstore-seaweedfs", "file"], indirect=True)
def test_fork_after_use(place: Place) -> None:
    done = run("fork_and_use", place)
    assert done.returncode == 0, done.stderr
    *of_child, last = done.stdout.splitlines()
    assert last == "parent: fine"
    if place.settings.get("client") == "obstore":
        assert ["obstore does not work in a process forked" in line for line in of_child] == [True]
    else:
        assert of_child == []
        assert done.stderr == ""


@pytest.mark.parametrize(
    ("place", "how", "returncode"),
    [
        ("s3fs-seaweedfs", "return", 0),
        ("s3fs-seaweedfs", "exit in a thread", 0),
        ("s3fs-seaweedfs", "exception", 1),
        ("s3fs-seaweedfs", "SIGTERM", -15),
        ("obstore-seaweedfs", "return", 0),
        ("obstore-seaweedfs", "SIGINT", -2),
        ("file", "return", 0),
    ],
    indirect=["place"],
)
def test_the_interpreter_ends_without_shutdown(place: Place, how: str, returncode: int) -> None:
    done = run("leave_running", place, how, timeout_seconds=20)
    assert done.stdout == "running\n"
    assert done.returncode == returncode
    allowed = {"exception": "KeyError", "SIGINT": "KeyboardInterrupt"}.get(how)
    noise = [line for line in done.stderr.splitlines() if line and not line.startswith(("Traceback", "  "))]
    assert not [line for line in noise if not (allowed and line.startswith(allowed))], done.stderr


@pytest.mark.parametrize("client", ["s3fs", "obstore"])
def test_a_server_that_dies_and_comes_back(client: str) -> None:
    server = new_server("moto")

    async def scenario() -> None:
        place = Place(settings_for(server, client=client, prefix="p"), server, "p")
        async with place.opened() as tier:
            assert all(await store(tier, *range(10)))
            server.kill()
            for _ in range(2):
                for call in (store(tier, 20), load(tier, 1), tier.lookup(keys_of(30))):
                    with pytest.raises(TemporaryTierError):
                        await call
            server.start()
            server.make_bucket(BUCKET)
            assert await load(tier, 1) == [False]
            assert all(await store(tier, *range(10)))
            assert all(await load(tier, *range(10)))

    with server:
        server.make_bucket(BUCKET)
        asyncio.run(used_once(server, client))
        with ResourceWatch():
            asyncio.run(scenario())


async def used_once(server: ObjectServer, client: str) -> None:
    """Let the client library make what it keeps until the process ends."""
    async with Place(settings_for(server, client=client, prefix="p"), server, "p").opened() as tier:
        await store(tier, 1)


def test_what_a_killed_server_had_taken_is_there_again() -> None:
    server = new_server("seaweedfs")

    async def scenario() -> None:
        place = Place(settings_for(server, prefix="p"), server, "p")
        async with place.opened() as tier:
            assert all(await store(tier, *range(10)))
            server.kill()
            with pytest.raises(TemporaryTierError):
                await load(tier, 1)
            server.start()
            assert all(await load(tier, *range(10)))
            assert all(await store(tier, *range(10, 20)))

    with server:
        server.make_bucket(BUCKET)
        asyncio.run(scenario())
