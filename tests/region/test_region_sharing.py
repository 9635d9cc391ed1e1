from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiering.errors import RegionError
from tiering.region import RegionLayout, reclaim_dead_regions

LAYOUT = RegionLayout(num_rows=5, num_workers=4, worker_page_bytes=3000)


def test_four_ranks_and_a_scheduler_share_rows(start, directory: Path, open_region) -> None:
    workers = [start(directory, "e", LAYOUT, rank) for rank in range(4)]
    scheduler = open_region(LAYOUT)
    assert sorted(worker.hear() for worker in workers).count("created") == (not scheduler.is_creator)
    for rank, worker in enumerate(workers):
        assert worker.ask(f"fill {rank + 1}") == "done"
    row = b"".join(bytes([rank + 1]) * 3000 for rank in range(4)) + bytes(288)
    assert [bytes(view) for view in scheduler.row_views([4, 0])] == [row, row]
    view = scheduler.create_kv_memoryview()
    assert (view.shape, view.tobytes()) == ((5, LAYOUT.row_bytes), row * 5)
    scheduler.row_views([2])[0][:3] = b"abc"
    assert scheduler.mmap_path.read_bytes()[2 * LAYOUT.row_bytes :][:4] == b"abc\1"
    view.release()


def test_the_last_to_leave_removes_the_file(start, directory: Path, open_region) -> None:
    creator = start(directory, "e", LAYOUT, 0)
    assert creator.hear() == "created"
    joiner = open_region(LAYOUT)
    assert creator.leave() == 0
    assert joiner.mmap_path.exists()
    assert reclaim_dead_regions(directory) == []
    joiner.cleanup()
    joiner.cleanup()
    assert list(directory.iterdir()) == []


def test_views_outlive_the_cleanup(open_region) -> None:
    region = open_region(LAYOUT, 1)
    tensor, view, rows = region.create_next_view(3000), region.create_kv_memoryview(), region.row_views([0])
    region.cleanup()
    tensor[0, 0] = 77
    assert (view[0, 3000], rows[0][3000]) == (77, 77)
    with pytest.raises(ValueError, match="has been cleaned up"):
        region.row_views([0])
    del tensor, view, rows
    gc.collect()
    assert open_region(LAYOUT, 1).is_creator


def test_memory_under_a_view_is_not_reclaimed(start, directory: Path, open_region) -> None:
    region = open_region(LAYOUT, 1)
    peer = start(directory, "e", LAYOUT, 0)
    assert peer.hear() == "joined"
    assert peer.ask("fill 9") == "done"
    (row,) = region.row_views([4])
    region.cleanup()
    peer.kill()
    assert reclaim_dead_regions(directory) == []
    assert bytes(row[:3000]) == b"\x09" * 3000
    row.release()
    assert reclaim_dead_regions(directory) == [region.mmap_path]


def test_a_seat_is_taken_once(start, directory: Path, open_region) -> None:
    worker = start(directory, "e", LAYOUT, 2)
    assert worker.hear() == "created"
    with pytest.raises(RegionError, match="already has a living process as rank 2"):
        open_region(LAYOUT, 2)
    open_region(LAYOUT, 1)
    worker.kill()
    assert not open_region(LAYOUT, 2).is_creator


def test_a_forked_child_lets_go_of_its_copies_only(directory: Path, open_region) -> None:
    region = open_region(LAYOUT, 0)
    child = os.fork()
    if child == 0:
        region.unlink()
        region.cleanup()
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
    assert reclaim_dead_regions(directory) == []
    assert region.mmap_path.exists()
    assert not open_region(LAYOUT, 1).is_creator
    with pytest.raises(RegionError, match="rank 0"):
        open_region(LAYOUT, 0)


@pytest.mark.parametrize("other", [RegionLayout(6, 4, 3000), RegionLayout(5, 3, 3000), RegionLayout(5, 4, 2999)])
def test_another_layout_is_refused_by_name(open_region, other: RegionLayout) -> None:
    region = open_region(LAYOUT)
    with pytest.raises(RegionError) as caught:
        open_region(other, 0)
    assert str(LAYOUT) in str(caught.value)
    assert str(other) in str(caught.value)
    assert str(LAYOUT.file_bytes) in str(caught.value)
    assert region.mmap_path.exists()


def test_files_that_are_no_regions_are_left_alone(directory: Path, open_region) -> None:
    stranger = directory / "tiering_e.mmap"
    stranger.write_bytes(b"a user's own array" * 1000)
    (directory / "tiering_link.mmap").symlink_to(stranger)
    assert reclaim_dead_regions(directory) == []
    with pytest.raises(RegionError, match="is not a region file"):
        open_region(LAYOUT)
    assert stranger.read_bytes() == b"a user's own array" * 1000
    with pytest.raises(RegionError, match="cannot open region"):
        open_region(LAYOUT, instance_id="link")


@pytest.mark.parametrize("instance_id", ["", "a/b", "..", "a\0b", "x" * 201, "é"])
def test_an_instance_id_must_fit_a_file_name(open_region, instance_id: str) -> None:
    with pytest.raises(ValueError, match="instance id"):
        open_region(LAYOUT, instance_id=instance_id)


def test_numbers_that_contradict_one_another_are_refused(directory: Path, open_region) -> None:
    region = open_region(LAYOUT)
    for rows in ([5], [-1], [0, 5]):
        with pytest.raises(ValueError, match=r"allowed are 0\.\.4"):
            region.row_views(rows)
    assert region.row_views([]) == []
    with pytest.raises(ValueError, match="scheduler has no column"):
        region.create_next_view(1)
    with pytest.raises(ValueError, match=r"rank 4 is outside 0\.\.3"):
        open_region(LAYOUT, 4)
    with pytest.raises(ValueError, match=f"total_size_bytes is 60000, but 5 rows of 12288 bytes take {5 * 12288}"):
        type(region)("e", 60000, 5, 0, 4, 3000, directory=directory)


def test_tensors_of_a_column_follow_one_another(open_region) -> None:
    region = open_region(LAYOUT, 3)
    first, second = region.create_next_view(1000), region.create_next_view(2000)
    assert (first.shape, second.shape, first.stride()) == ((5, 1000), (5, 2000), (LAYOUT.row_bytes, 1))
    first[:], second[:] = 1, 2
    rows = np.frombuffer(region.create_kv_memoryview(), dtype=np.uint8).reshape(5, -1)
    assert (rows[:, 9000:10000] == 1).all()
    assert (rows[:, 10000:12000] == 2).all()
    assert not rows[:, :9000].any()
    assert not rows[:, 12000:].any()


def test_the_control_path_needs_no_torch() -> None:
    code = "import sys, tiering.region; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
