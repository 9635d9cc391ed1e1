"""The scheduler thread never touches a file or socket and never waits, whatever it asks of the manager."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from io_alarm import IOAlarm, io_alarm
from manager_rig import R1, R2, R3, ROW_BYTES, key, keys, worker_of

from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.testing import PlainRows, check_quiescent, drain, fill_row, row_matches
from tiers.disk.config import DiskConfig
from tiers.disk.tier import DiskTier


class AsksEachTime(DiskTier):
    """Without an index that the scheduler may look into."""

    contains = None  # type: ignore[assignment]


def test_no_call_does_io(tmp_path: Path) -> None:
    for tier_class in (DiskTier, AsksEachTime):
        config = DiskConfig(type="disk", root_dirs=[tmp_path / tier_class.__name__], capacity=64 * 8192)
        rows = PlainRows(8, ROW_BYTES)
        with (
            worker_of(rows, lambda c, k=tier_class, f=config: k(f, c), name="disk", events=True) as worker,
            io_alarm() as alarm,
        ):
            primary = CPUPrimaryTierOffloadingManager(8, "arc", True, mmap_region=rows)
            manager = TieringOffloadingManager(primary, [worker], row_bytes=ROW_BYTES, promotion_limit=1.0)
            serve(manager, rows, alarm)
            drain(manager)
            stats = manager.get_stats()["tiers"]["disk"]
            assert stats["stored_chunks"] == 6
            assert stats["loaded_chunks"] >= 4
            check_quiescent(manager, 8)
            assert alarm.seen == []


def serve(manager: TieringOffloadingManager, rows: PlainRows, alarm: IOAlarm) -> None:
    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        with alarm.watch():
            return function(*arguments)

    call(manager.on_new_request, R1)
    store = call(manager.prepare_store, keys(1, 2, 3, 4, 5, 6, 7), R1)
    for stored, row in zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True):
        fill_row(rows.array[row], stored)
    call(manager.complete_store, keys(1, 2, 3, 4, 5, 6), True, R1)
    call(manager.complete_store, keys(7), False, R1)
    call(manager.touch, keys(1, 2))
    call(manager.on_request_finished, R1)
    while call(manager.has_pending_work):
        call(manager.on_schedule_end)
        time.sleep(50e-6)
    call(manager.take_events)
    call(manager.reset_cache)
    while call(manager.lookup_prefix, keys(1, 2, 3, 4, 99), R2).must_wait:
        call(manager.status, key(5), R3)
        call(manager.lookup, key(98), R3)
        call(manager.on_schedule_end)
        time.sleep(50e-6)
    load = call(manager.prepare_load, keys(1, 2, 3, 4), R2)
    for loaded, row in zip(keys(1, 2, 3, 4), load.block_ids.tolist(), strict=True):
        assert row_matches(rows.array[row], loaded)
    call(manager.get_load_source, key(1), R2)
    call(manager.complete_load, keys(1, 2, 3, 4), R2)
    call(manager.get_stats)
    for request in (R2, R3):
        call(manager.on_request_finished, request)
    call(manager.on_schedule_end)
    call(manager.take_events)


def test_the_alarm_hears_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "file"
    ends = socket.socketpair()
    with io_alarm() as alarm:
        actions: list[Callable[[], object]] = [
            lambda: file.write_bytes(b"x"),
            lambda: os.stat(file),
            lambda: os.close(os.open(file, os.O_RDONLY)),
            lambda: os.listdir(tmp_path),
            lambda: ends[0].send(b"x"),
            lambda: time.sleep(0),
            lambda: threading.Event().wait(0),
        ]
        for number, action in enumerate(actions):
            action()
            assert alarm.seen == [], "not armed"
            with alarm.watch():
                action()
            assert alarm.seen, f"action {number} was not heard"
            alarm.seen.clear()
    for end in ends:
        end.close()
