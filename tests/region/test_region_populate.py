from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tiering.errors import RegionError
from tiering.region import RegionLayout, populate
from tiering.region.huge_pages import huge_page_policy
from tiering.region.populate import Population

LAYOUT = RegionLayout(num_rows=6, num_workers=2, worker_page_bytes=6000)

PAGE = mmap.PAGESIZE


def refuse(code: int):
    """A kernel that answers ``code`` to every advice."""

    def madvise(*_: int) -> int:
        ctypes.set_errno(code)
        return -1

    return madvise


@pytest.mark.parametrize("old_kernel", [True, False])
def test_tc_63_populating_keeps_what_a_peer_has_stored(  # noqa: PLR0917
    start, directory: Path, open_region, monkeypatch, caplog, old_kernel: bool
) -> None:
    if old_kernel:
        monkeypatch.setattr(populate, "_madvise", refuse(errno.EINVAL))
    peer = start(directory, "e", LAYOUT, 0)
    assert peer.hear() == "created"
    assert peer.ask("fill 171") == "done"
    path = directory / "tiering_e.mmap"
    before = path.read_bytes()
    for rank in (1, None):
        caplog.clear()
        open_region(LAYOUT, rank)
        assert path.read_bytes() == before
        assert ["slower start" in record.message for record in caplog.records] == [True] * old_kernel
    assert before[: LAYOUT.total_bytes] == (b"\xab" * 6000 + bytes(LAYOUT.row_bytes - 6000)) * 6


def test_tc_63_the_fallback_only_reads(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(populate, "_madvise", refuse(errno.EINVAL))
    (tmp_path / "pages").write_bytes(b"x" * 4 * PAGE)
    with (tmp_path / "pages").open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        Population(mapping, file.fileno(), [(0, PAGE), (2 * PAGE, 2 * PAGE)], 1).wait()


def test_tc_63_other_errors_are_not_swallowed_and_leave_nothing(directory: Path, open_region, monkeypatch) -> None:
    monkeypatch.setattr(populate, "_madvise", refuse(errno.EIO))
    with pytest.raises(RegionError, match=f"cannot populate .*tiering_e.mmap: {os.strerror(errno.EIO)}"):
        open_region(LAYOUT, 0)
    assert list(directory.iterdir()) == []


def test_every_page_is_asked_for_once(monkeypatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(populate, "_madvise", lambda address, length, _: asked.append((address, length)) or 0)
    monkeypatch.setattr(populate, "_SLICE_BYTES", 3 * PAGE)
    with mmap.mmap(-1, 100 * PAGE) as mapping:
        base = np.frombuffer(mapping, dtype=np.uint8).ctypes.data
        Population(mapping, -1, [(0, PAGE), (10 * PAGE, 50 * PAGE), (99 * PAGE, PAGE)], 4).wait()
    pages = sorted((address - base) // PAGE + page for address, length in asked for page in range(length // PAGE))
    assert pages == [0, *range(10, 60), 99]
    assert max(length for _, length in asked) == 3 * PAGE


def test_in_the_background(open_region, monkeypatch, caplog) -> None:
    gate = os.pipe()
    real = populate._madvise
    monkeypatch.setattr(populate, "_madvise", lambda *arguments: os.read(gate[0], 1) and real(*arguments))
    with caplog.at_level(logging.INFO, "tiering"):
        region = open_region(LAYOUT, 1, populate_in_background=True)
    was_ready = region.is_ready
    os.write(gate[1], b"x" * 1000)  # before anything can fail, because the clean-up waits for the threads
    assert not was_ready
    assert "6 rows of 0.0 MiB" in caplog.text
    region.wait_until_ready()
    region.wait_until_ready()
    assert region.is_ready
    for fd in gate:
        os.close(fd)


def test_a_failure_in_the_background_is_told_and_a_cleanup_ends_it(directory: Path, open_region, monkeypatch) -> None:
    monkeypatch.setattr(populate, "_madvise", refuse(errno.EFAULT))
    region = open_region(LAYOUT, 1, populate_in_background=True)
    with pytest.raises(RegionError, match=f"needs {LAYOUT.file_bytes} bytes"):
        region.wait_until_ready()
    region.cleanup()
    open_region(LAYOUT, 1, populate_in_background=True).cleanup()
    assert list(directory.iterdir()) == []


def test_threads_run_where_they_are_told(open_region, monkeypatch) -> None:
    seen: set[int] = set()
    monkeypatch.setattr(populate, "_madvise", lambda *_: seen.update(os.sched_getaffinity(0)) or 0)
    cpu = max(os.sched_getaffinity(0))
    open_region(LAYOUT, 1, populate_cpus={cpu})
    assert seen == {cpu}


@pytest.fixture
def huge_mount() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tiering-test-") as name:
        command = ["mount", "-t", "tmpfs", "-o", "size=64m,huge=advise", "tiering-test", name]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a tmpfs with huge pages")
        yield Path(name)
        subprocess.run(["umount", "--lazy", name], check=True)


def test_huge_pages_where_the_mount_allows_them(huge_mount: Path, directory: Path, open_region, caplog) -> None:
    assert (huge_page_policy(huge_mount), huge_page_policy(directory)) == ("advise", "never")
    layout = RegionLayout(16, 2, 2**20)
    with caplog.at_level(logging.INFO):
        region = open_region(layout, 1, directory=huge_mount)
    assert "huge pages: advise" in caplog.text
    maps = Path("/proc/self/smaps").read_text(encoding="utf-8")
    address = np.frombuffer(region.create_kv_memoryview(), dtype=np.uint8).ctypes.data
    (own,) = [part for part in maps.split("VmFlags:") if f"\n{address:x}-" in part]
    own = own[own.index(f"\n{address:x}-") :]
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in own.splitlines() if line.endswith(" kB")}
    assert kilobytes["ShmemPmdMapped:"] * 1024 == layout.total_bytes


def test_no_mounts_to_be_seen(directory: Path, tmp_path: Path) -> None:
    assert huge_page_policy(directory, tmp_path) == "unknown"
