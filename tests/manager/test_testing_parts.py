"""The parts that the project ships for tests: each check finds what it is there to find."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from manager_rig import R1, Rig, key, keys

from tiering.testing import LeakError, NotQuiescentError, PlainRows, ResourceWatch, drain, key_pattern, row_matches


def test_patterns_belong_to_one_key_and_one_place() -> None:
    one, other = key_pattern(key(1), 4096), key_pattern(key(1, 1), 4096)
    assert not (one.view(np.uint64) == other.view(np.uint64)).any()
    assert len(set(one.view(np.uint64).tolist())) == 512, "a shifted pattern is a wrong one"
    assert (key_pattern(key(1), 100) == one[:100]).all()
    assert key_pattern(key(1), 0).size == 0
    rows = PlainRows(2, 64)
    rows.array[1] = key_pattern(key(1), 64)
    assert row_matches(rows.row_views([1])[0], key(1))
    assert not row_matches(rows.array[0], key(1))
    assert not row_matches(rows.array[1], key(2))


def test_drain_gives_up() -> None:
    rig = Rig(2, "stuck")
    rig.store(R1, key(1))
    with pytest.raises(TimeoutError, match=r"still has pending work after 0\.01 s .*stuck"):
        drain(rig.manager, timeout_seconds=0.01)
    rig.tier.finish_all()
    assert drain(rig.manager) == 1


def test_the_quiescence_check_finds_every_kind_of_leak() -> None:
    def leave_request(rig: Rig) -> None:
        rig.manager.prepare_load(keys(1), R1)
        rig.manager.complete_load(keys(1))

    def leave_job(rig: Rig) -> None:
        rig.tier.answers[key(5)] = True
        rig.statuses(R1, key(5))
        rig.step()
        rig.finish(R1)

    def wrong_bytes(rig: Rig) -> None:
        rig.rows.array[rig.primary.rows.index[key(1)], 63] ^= 1

    for leak, message in (
        (lambda rig: rig.manager.prepare_load(keys(1), R1), "do not fit into 4 rows"),
        (lambda rig: rig.manager.prepare_store(keys(3), R1), "stores_open is 1"),
        (leave_request, "requests is 1"),
        (lambda rig: rig.statuses(R1, key(1)), "requests_remembered is 1"),
        (leave_job, "pending work after 3 empty steps.*rows_promoting is 1.*tier disk has 1 jobs in flight"),
        (wrong_bytes, "does not hold the bytes of its key"),
        (lambda rig: rig.primary.rows._free.pop(), "1 free rows and 2 chunks do not make 4 rows"),
    ):
        rig = Rig(4, "disk")
        rig.fill(*keys(1, 2))
        leak(rig)
        with pytest.raises(NotQuiescentError, match=message):
            rig.check()


def test_the_resource_watch_finds_threads_descriptors_and_files(tmp_path: Path) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-over")
    with pytest.raises(LeakError, match="thread 'left-over'"), ResourceWatch():
        thread.start()
    release.set()
    thread.join()
    with pytest.raises(LeakError, match="file descriptor"), ResourceWatch():
        left = os.open(tmp_path, os.O_RDONLY)
    os.close(left)
    with pytest.raises(LeakError, match=r"file .*left-over"), ResourceWatch(tmp_path):
        (tmp_path / "left-over").touch()
