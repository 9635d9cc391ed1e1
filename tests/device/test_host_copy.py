"""The host engine's ways of copying, byte for byte, and its threads."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from tiering.device import HostCopyEngine
from tiering.device import host_copy_engine as module
from tiering.device.host_copy import copy_pieces


def scattered(rng: np.random.Generator, sizes: list[int], gap: int) -> np.ndarray:
    """Return offsets at which pieces of these sizes lie in a random order without overlapping."""
    offsets = np.zeros(len(sizes), dtype=np.int64)
    at = 0
    for index in rng.permutation(len(sizes)):
        offsets[index] = at = at + int(rng.integers(0, gap + 1))
        at += sizes[index]
    return offsets


@pytest.mark.parametrize("seed", range(30))
def test_random_pieces(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.choice([1, 3, 64, 100, 4096, 8191, 8192, 20000], size=rng.integers(1, 4))
    sizes = [int(size) for size in rng.choice(kinds, size=rng.integers(0, 200))]
    gap = int(rng.choice([0, 64]))
    src_at, dst_at = scattered(rng, sizes, gap), scattered(rng, sizes, gap)
    room = sum(sizes) + (gap + 1) * (len(sizes) + 1)
    src = rng.integers(0, 256, room, dtype=np.uint8)
    dst = np.full(room, 0x5A, dtype=np.uint8)
    expected = dst.copy()
    for a, b, size in zip(src_at, dst_at, sizes, strict=True):
        expected[b : b + size] = src[a : a + size]
    copy_pieces(src.ctypes.data + src_at, dst.ctypes.data + dst_at, np.array(sizes, dtype=np.int64))
    assert dst.tobytes() == expected.tobytes()


def test_many_copies_of_one_small_piece() -> None:
    src, dst = np.arange(10, dtype=np.uint8), np.zeros(1000, dtype=np.uint8)
    copy_pieces(np.full(100, src.ctypes.data), dst.ctypes.data + 10 * np.arange(100), np.full(100, 10))
    assert dst.tobytes() == src.tobytes() * 100


@pytest.mark.parametrize("num_pieces", [1, 2, 3, 7, 50])
def test_large_jobs_are_divided_among_threads(monkeypatch, num_pieces: int) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_THREAD", 1000)
    rng = np.random.default_rng(num_pieces)
    sizes = rng.integers(900, 5000, num_pieces)
    src, dst = rng.integers(0, 256, sizes.sum(), dtype=np.uint8), np.zeros(sizes.sum(), dtype=np.uint8)
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1]))
    parts: list[int] = []

    def copy(src_ptrs, dst_ptrs, sizes) -> None:
        parts.append(len(sizes))
        copy_pieces(src_ptrs, dst_ptrs, sizes)

    engine = HostCopyEngine(copy=copy, num_threads=3)
    engine.submit(1, src.ctypes.data + offsets, dst.ctypes.data + offsets, sizes)
    engine.wait({1})
    assert [result.error for result in engine.poll()] == [None]
    assert dst.tobytes() == src.tobytes()
    assert sum(parts) == num_pieces
    assert len(parts) == min(3, num_pieces)
    engine.shutdown()


def test_a_failing_part_fails_the_job_after_the_other_parts_have_ended(monkeypatch) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_THREAD", 1)
    go = threading.Semaphore(0)
    ended = []

    def copy(src_ptrs, *_) -> None:
        if src_ptrs[0] == 0:
            go.release()
            raise OSError("injected")
        go.acquire()
        ended.append(int(src_ptrs[0]))

    engine = HostCopyEngine(copy=copy, num_threads=2)
    engine.submit(1, np.arange(2), np.arange(2), np.ones(2, dtype=np.int64))
    engine.wait({1})
    assert [(result.error, ended) for result in engine.poll()] == [("OSError: injected", [1])]
    engine.shutdown()


def test_threads_run_where_they_are_told(monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_THREAD", 1)
    cpu = max(os.sched_getaffinity(0))
    seen = []
    engine = HostCopyEngine(copy=lambda *_: seen.append(os.sched_getaffinity(0)), num_threads=2, cpus={cpu})
    engine.submit(1, np.arange(2), np.arange(2), np.ones(2, dtype=np.int64))
    engine.shutdown()
    assert seen == [{cpu}, {cpu}]
    assert not caplog.records
    with pytest.raises(ValueError, match="num_threads is 0"):
        HostCopyEngine(num_threads=0)


@pytest.mark.parametrize("cpus", [{os.cpu_count() or 0}, {-1}, {10**30}, {"0"}], ids=repr)
def test_impossible_processors_are_reported_and_copies_go_on(monkeypatch, caplog, cpus) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_THREAD", 1)
    engine = HostCopyEngine(copy=lambda *_: None, num_threads=2, cpus=cpus)
    engine.submit(1, np.arange(2), np.arange(2), np.ones(2, dtype=np.int64))
    engine.shutdown()
    assert [(result.job_id, result.error) for result in engine.poll()] == [(1, None)]
    assert "copy threads cannot run on processors" in caplog.text


def test_a_copy_that_asks_to_exit_fails_its_own_job_only() -> None:
    def copy(src_ptrs, *_) -> None:
        if src_ptrs[0] == 0:
            raise SystemExit("enough")

    engine = HostCopyEngine(copy=copy)
    for job_id in (0, 1):
        engine.submit(job_id, np.array([job_id]), np.array([0]), np.array([1]))
    engine.shutdown()
    assert [(result.job_id, result.error) for result in engine.poll()] == [(0, "SystemExit: enough"), (1, None)]


def test_where_no_thread_can_be_started_one_copies_all_and_nothing_is_copied_later(monkeypatch) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_THREAD", 1)
    src, dst = np.arange(100, dtype=np.uint8), np.zeros(100, dtype=np.uint8)
    engine = HostCopyEngine(num_threads=4)

    def job(job_id: int, num_pieces: int) -> list[str | None]:
        pieces = np.arange(num_pieces)
        engine.submit(job_id, src.ctypes.data + pieces, dst.ctypes.data + pieces, np.ones(num_pieces, dtype=np.int64))
        engine.wait({job_id})
        return [result.error for result in engine.poll()]

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert job(1, 100) == [None]
    assert dst.tobytes() == src.tobytes()
    dst[:] = 0xEE
    assert job(2, 10) == [None]
    engine.shutdown()
    assert dst.tobytes() == src[:10].tobytes() + b"\xee" * 90
