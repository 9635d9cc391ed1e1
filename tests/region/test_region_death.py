"""Regions whose processes are killed, give up, or do not come."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tiering.errors import RegionError
from tiering.region import RegionLayout, memory_limits, opening, reclaim_dead_regions
from tiering.region.memory_limits import MemoryLimit
from tiering.region.ownership import hold_life

LAYOUT = RegionLayout(num_rows=256, num_workers=2, worker_page_bytes=8192)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_tc_59_five_starts_after_sigkill_in_little_memory(start, directory: Path, mount_tmpfs) -> None:
    small = RegionLayout(4, 1, 4096)
    with suppress(pytest.skip.Exception):  # without the mount the rest still holds
        mount_tmpfs(LAYOUT.file_bytes * 12 // 10 + small.file_bytes)
    other = start(directory, "other", small, 0)
    assert other.hear() == "created"
    assert other.ask("fill 7") == "done"
    other_bytes = (directory / "tiering_other.mmap").read_bytes()
    for killed in ({0, 1, 2}, {0}, {1}, {0, 1, 2}, {0, 1, 2}):
        members = [start(directory, "e", LAYOUT, rank) for rank in (None, 0, 1)]
        assert sorted(member.hear() for member in members) == ["created", "joined", "joined"]
        for index, member in enumerate(members):
            assert member.ask(f"fill {index}") == "done"
        for index in killed:
            members[index].kill()
        for index in {0, 1, 2} - killed:
            assert members[index].leave() == 0
        if killed != {0, 1, 2}:
            assert names(directory) == ["tiering_other.mmap"]
    assert reclaim_dead_regions(directory) == [directory / "tiering_e.mmap"]
    assert names(directory) == ["tiering_other.mmap"]
    assert (directory / "tiering_other.mmap").read_bytes() == other_bytes
    assert other.ask("fill 8") == "done"


def test_a_region_that_another_process_makes_meanwhile_is_joined_though_a_second_one_would_not_fit(
    directory: Path,
) -> None:
    """In the moment in which it is looked for it is not there, and in the next one it has taken the memory."""
    too_large = RegionLayout(2**40, 1, 4096)
    path = directory / "tiering_e.mmap"
    with pytest.raises(RegionError, match="lower cpu_bytes_to_use"):
        opening._create(path, too_large)
    path.touch()
    holder = os.open(path, os.O_RDWR)
    hold_life(holder)
    assert opening._create(path, too_large) is None
    os.close(holder)
    path.unlink()


def test_tc_59_a_dead_region_gives_its_memory_back_even_to_those_who_look_at_it(start, mount_tmpfs) -> None:
    directory = mount_tmpfs(LAYOUT.file_bytes)
    dead = start(directory, "e", LAYOUT, 0)
    assert dead.hear() == "created"
    with (directory / "tiering_e.mmap").open("rb"):
        dead.kill()
        assert start(directory, "e", LAYOUT, 0).hear() == "created"


def test_tc_59_killed_during_start(start, directory: Path) -> None:
    for _ in range(2):
        creator = start(directory, "e", LAYOUT, 0, stop_when="populating")
        assert creator.hear() == "populating"
        creator.kill()
        assert names(directory) == ["tiering_e.mmap"]
    assert start(directory, "e", LAYOUT, 0).hear() == "created"


def test_tc_59_a_start_reclaims_other_dead_engines(start, directory: Path, open_region) -> None:
    dead = start(directory, "dead", LAYOUT, 0)
    assert dead.hear() == "created"
    dead.kill()
    open_region(LAYOUT)
    assert names(directory) == ["tiering_e.mmap"]


def test_tc_59_nothing_is_left_after_an_early_unlink(start, directory: Path) -> None:
    members = [start(directory, "e", LAYOUT, rank) for rank in (None, 0, 1)]
    for member in members:
        assert member.hear() in {"created", "joined"}
    for member in members:
        assert member.ask("unlink") == "done"
        assert names(directory) == []
    assert members[1].ask("fill 3") == "done"
    # A later engine of the same name is another region, and the old members never touch its name.
    successor = start(directory, "e", LAYOUT, 0)
    assert successor.hear() == "created"
    assert members[0].ask("unlink") == "done"
    assert members[0].ask("cleanup") == "done"
    members[1].kill()
    assert members[2].leave() == 0
    assert names(directory) == ["tiering_e.mmap"]


def test_tc_60_too_little_memory_is_one_clear_error(start, mount_tmpfs) -> None:
    room = LAYOUT.total_bytes // 2
    directory = mount_tmpfs(room)
    starters = [start(directory, "e", LAYOUT, rank) for rank in (0, 1)]
    for message in [starter.hear() for starter in starters]:
        assert message.startswith("RegionError: ")
        if "failed and removed it" not in message:
            assert f"needs {LAYOUT.file_bytes} bytes" in message
            assert f"has {room} bytes" in message
            assert "cpu_bytes_to_use" in message
    assert names(directory) == []


def test_tc_60_a_report_of_free_space_is_not_trusted(mount_tmpfs, open_region, monkeypatch) -> None:
    directory = mount_tmpfs(LAYOUT.total_bytes // 2)
    monkeypatch.setattr(opening, "check_room", lambda *_: None)
    needs = rf"needs {LAYOUT.file_bytes} bytes .* has \d+ bytes .* available; lower cpu_bytes_to_use"
    with pytest.raises(RegionError, match=needs):
        open_region(LAYOUT)
    assert names(directory) == []
    assert os.statvfs(directory).f_bavail * os.statvfs(directory).f_frsize == LAYOUT.total_bytes // 2


def test_tc_60_free_space_is_checked_before_anything_is_created(directory: Path, open_region, monkeypatch) -> None:
    monkeypatch.setattr(memory_limits, "find_limits", lambda _: [MemoryLimit("this place", 1000)])
    monkeypatch.setattr(os, "ftruncate", lambda *_: pytest.fail("sized"))
    with pytest.raises(RegionError, match=r"needs 4198400 bytes \(4\.0 MiB\), but this place has 1000 bytes"):
        open_region(LAYOUT)
    assert names(directory) == []


def test_tc_60_memory_that_just_suffices_can_be_written_to_the_last_byte(start, mount_tmpfs) -> None:
    directory = mount_tmpfs(LAYOUT.file_bytes)
    workers = [start(directory, "e", LAYOUT, rank) for rank in (0, 1)]
    assert sorted(worker.hear() for worker in workers) == ["created", "joined"]
    for rank, worker in enumerate(workers):
        assert worker.ask(f"fill {rank + 1}") == "done"
    rows = (directory / "tiering_e.mmap").read_bytes()[: LAYOUT.total_bytes]
    assert rows == (b"\1" * 8192 + b"\2" * 8192) * 256


def test_tc_60_a_joiner_does_not_need_the_creator(start, directory, open_region) -> None:
    creator = start(directory, "e", LAYOUT, 0, stop_when="populating")
    assert creator.hear() == "populating"
    region = open_region(LAYOUT, 1)
    assert not region.is_creator
    creator.kill()
    assert region.is_ready
    region.create_next_view(8192).fill_(3)
    rows = region.mmap_path.read_bytes()[: LAYOUT.total_bytes]
    assert rows == (bytes(8192) + b"\3" * 8192) * 256


def test_tc_60_an_empty_stub_is_waited_for_only_while_somebody_holds_it(directory: Path, open_region) -> None:
    stub = directory / "tiering_e.mmap"
    with stub.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(RegionError, match=rf"expected {LAYOUT.file_bytes} bytes, the file has 0"):
            open_region(LAYOUT, join_timeout=0.05)
        assert stub.exists()
    assert open_region(LAYOUT).is_creator


def test_a_file_system_that_refuses_is_an_error_with_the_path(directory: Path, open_region) -> None:
    with pytest.raises(RegionError, match=os.strerror(errno.ENOENT)):
        open_region(LAYOUT, directory=directory / "absent")
