from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest

from tiering.region import RegionLayout, prefault, shared_region

LAYOUT = RegionLayout(num_rows=6, num_workers=2, worker_page_bytes=6000)

UNKNOWN_ADVICE = 9999
"""The kernel answers EINVAL to this one, as old kernels do to MADV_POPULATE_WRITE."""


def test_tc_63_prefault_keeps_what_a_peer_has_stored(start, directory: Path, open_region, monkeypatch, caplog) -> None:
    monkeypatch.setattr(prefault, "MADV_POPULATE_WRITE", UNKNOWN_ADVICE)
    peer = start(directory, "e", LAYOUT, 0)
    assert peer.hear() == "created"
    assert peer.ask("fill 171") == "done"
    path = directory / "tiering_e.mmap"
    before = path.read_bytes()
    for rank in (1, None):
        caplog.clear()
        open_region(LAYOUT, rank)
        assert path.read_bytes() == before
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "start is slower" in caplog.text
    assert before[: LAYOUT.total_bytes] == (b"\xab" * 6000 + bytes(LAYOUT.row_bytes - 6000)) * 6


def test_tc_63_populating_keeps_what_a_peer_has_stored(start, directory: Path, open_region, caplog) -> None:
    peer = start(directory, "e", LAYOUT, 0)
    assert peer.hear() == "created"
    assert peer.ask("fill 171") == "done"
    before = (directory / "tiering_e.mmap").read_bytes()
    open_region(LAYOUT, 1)
    open_region(LAYOUT)
    assert (directory / "tiering_e.mmap").read_bytes() == before


def test_tc_63_the_fallback_only_reads(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prefault, "MADV_POPULATE_WRITE", UNKNOWN_ADVICE)
    (tmp_path / "pages").write_bytes(b"x" * 4 * mmap.PAGESIZE)
    with (tmp_path / "pages").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        prefault.prefault(mapping, [(0, mmap.PAGESIZE), (2 * mmap.PAGESIZE, 2 * mmap.PAGESIZE)])


class BrokenMemory(mmap.mmap):
    def madvise(self, *_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_tc_63_other_errors_are_not_swallowed_and_leave_nothing(directory: Path, open_region, monkeypatch) -> None:
    monkeypatch.setattr(shared_region.mmap, "mmap", BrokenMemory)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        open_region(LAYOUT, 0)
    assert list(directory.iterdir()) == []
