"""What the CUDA engine asks of a device, proved on one that runs everything as early as it is allowed to."""

from __future__ import annotations

import gc
import logging
import weakref

import numpy as np
import pytest

from tiering.device import CudaCopyEngine, Direction
from tiering.device.pinned_memory import pin_memory
from tiering.testing.fake_cuda import FakeCudaRuntime

PAGE = 64


class Rig:
    """Two engines over one page of device memory and four rows of host memory."""

    def __init__(self, runtime: FakeCudaRuntime, *, pinned: bool = True) -> None:
        self.runtime = runtime
        self.device = np.zeros(PAGE, dtype=np.uint8)
        self.rows = np.zeros((4, PAGE), dtype=np.uint8)
        ranges = [(self.rows.ctypes.data, self.rows.nbytes)]
        memory = pin_memory(runtime, ranges, self.rows) if pinned else None
        self.stores = CudaCopyEngine(runtime, Direction.TO_HOST, memory)
        self.loads = CudaCopyEngine(runtime, Direction.TO_DEVICE, memory)
        runtime.calls.clear()

    def fill(self, value: int) -> None:
        """Queue a kernel that writes the device page."""
        self.runtime.on_compute(lambda: self.device.fill(value))

    def store(self, job_id: int, row: int, num_pieces: int = 1) -> None:
        self.stores.submit(job_id, *self._pieces(self.device, self.rows[row], num_pieces))

    def load(self, job_id: int, row: int) -> None:
        self.loads.submit(job_id, *self._pieces(self.rows[row], self.device, 1))

    @staticmethod
    def _pieces(src, dst, num_pieces: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        offsets = np.arange(num_pieces) * (PAGE // num_pieces)
        return src.ctypes.data + offsets, dst.ctypes.data + offsets, np.full(num_pieces, PAGE // num_pieces)


@pytest.fixture
def rig() -> Rig:
    return Rig(FakeCudaRuntime())


def results(engine: CudaCopyEngine) -> list[tuple[int, str | None]]:
    return [(result.job_id, result.error) for result in engine.poll()]


def test_tc_04_a_store_waits_for_the_kernel_that_produces_its_bytes(rig: Rig) -> None:
    for turn in range(200):
        row, value = turn % 4, turn % 251 + 1
        rig.fill(value)
        rig.store(turn, row)
        rig.fill(252)  # the engine goes on computing
        assert results(rig.stores) == []
        rig.stores.wait({turn})
        assert results(rig.stores) == [(turn, None)]
        assert (rig.rows[row] == value).all()


def test_tc_04_a_load_waits_for_the_kernel_that_clears_its_blocks(rig: Rig) -> None:
    rig.rows[2] = 7
    rig.fill(0)
    rig.load(1, 2)
    rig.loads.wait({1})
    rig.runtime.advance()
    assert (rig.device == 7).all()


def test_tc_04_back_to_back_stores_and_loads_of_one_block(rig: Rig) -> None:
    for turn in range(50):
        rig.fill(turn + 1)
        rig.store(turn, 0)
        rig.stores.wait({turn})
        rig.fill(0)
        rig.load(turn, 0)
        rig.loads.wait({turn})
        rig.store(1000 + turn, 1)
        rig.stores.wait({1000 + turn})
        assert (rig.rows[1] == turn + 1).all()


def test_the_fake_shows_a_copy_that_does_not_wait(rig: Rig, monkeypatch) -> None:
    """Otherwise the tests above could not fail."""
    monkeypatch.setattr(rig.runtime, "wait_for_compute", lambda _: None)
    rig.fill(5)
    rig.store(1, 0)
    rig.stores.wait({1})
    assert (rig.rows[0] == 0).all()


def test_jobs_of_one_direction_are_chained(rig: Rig) -> None:
    for job_id in (1, 2, 3):
        rig.store(job_id, job_id)
    assert rig.runtime.calls == [
        "new_stream", "new_event", "new_event",
        "wait_for_compute stream 1", "record event 1 on stream 1",
        "copy_batch of 1 to host on stream 1", "record event 2 on stream 1",
        "new_stream", "new_event", "new_event",
        "wait_for_compute stream 2", "wait_for_event 2 on stream 2", "record event 3 on stream 2",
        "copy_batch of 1 to host on stream 2", "record event 4 on stream 2",
        "new_stream", "new_event", "new_event",
        "wait_for_compute stream 3", "wait_for_event 4 on stream 3", "record event 5 on stream 3",
        "copy_batch of 1 to host on stream 3", "record event 6 on stream 3",
    ]  # fmt: skip
    ended = []
    while rig.runtime.advance(1):
        ended += results(rig.stores)
    assert ended == [(1, None), (2, None), (3, None)]


def test_the_fake_shows_jobs_that_are_not_chained(rig: Rig, monkeypatch) -> None:
    monkeypatch.setattr(rig.runtime, "wait_for_event", lambda *_: None)
    monkeypatch.setattr(rig.runtime, "wait_for_compute", lambda _: None)
    rig.device[:] = 1
    for job_id in (1, 2):
        rig.store(job_id, job_id)
    rig.runtime.advance(2)
    assert [bool(rig.rows[row].any()) for row in (1, 2)] == [False, True]


def test_streams_and_events_are_used_again(rig: Rig) -> None:
    for job_id in range(100):
        rig.store(job_id, 0)
        if job_id % 2:
            rig.runtime.advance()
            assert len(results(rig.stores)) == 2
    made = [call for call in rig.runtime.calls if call.startswith("new_")]
    assert sorted(made) == ["new_event"] * 4 + ["new_stream"] * 2


def test_wait_fences_what_it_is_asked_for_and_no_more(rig: Rig) -> None:
    for job_id, value in ((1, 11), (2, 22), (3, 33)):
        rig.fill(value)
        rig.store(job_id, job_id)
    rig.stores.wait({2, 99})
    assert [rig.rows[row, 0] for row in (1, 2, 3)] == [11, 22, 0]
    assert results(rig.stores) == [(1, None), (2, None)]


def test_seconds_are_those_of_the_copying_alone(rig: Rig) -> None:
    for _ in range(50):
        rig.runtime.on_compute(lambda: None)
    rig.store(1, 0, num_pieces=4)
    rig.runtime.advance()
    (result,) = rig.stores.poll()
    assert result.seconds == pytest.approx(0.005)  # the fake's clock: four pieces and the end


def test_an_empty_job_has_a_result(rig: Rig) -> None:
    nothing = np.empty(0, dtype=np.int64)
    rig.stores.submit(1, nothing, nothing, nothing)
    rig.stores.wait({1})
    assert results(rig.stores) == [(1, None)]


@pytest.mark.parametrize("call", ["copy_batch", "wait_for_compute", "wait_for_event", "seconds_between"])
def test_a_failing_call_fails_its_job_and_no_other(rig: Rig, caplog, call: str) -> None:
    rig.store(1, 1)
    rig.runtime.fail(call, after=int(call == "seconds_between"))
    rig.device[:] = 9
    rig.store(2, 2)
    rig.store(3, 3)
    rig.stores.wait({1, 2, 3})
    assert results(rig.stores) == [(1, None), (2, f"CudaError: {call}: told to fail"), (3, None)]
    assert (rig.rows[3] == 9).all()
    assert f"copy job 2 (to host) failed: CudaError: {call}" in caplog.text


def test_a_launch_that_fails_half_way_has_not_ended_before_its_pieces_have() -> None:
    rig = Rig(FakeCudaRuntime(can_batch=False))
    rig.device[:] = 4
    rig.runtime.fail("piece", after=3)
    rig.store(1, 0, num_pieces=8)
    assert results(rig.stores) == []
    assert not rig.rows.any()
    rig.runtime.advance()
    assert results(rig.stores) == [(1, "CudaError: piece: told to fail")]
    assert rig.rows[0].tolist() == [4] * 24 + [0] * 40


def test_an_end_that_cannot_be_recorded_is_a_failed_job(rig: Rig) -> None:
    rig.runtime.fail("record", after=1)
    rig.store(1, 1)
    assert results(rig.stores) == [(1, "CudaError: record: told to fail")]
    rig.store(2, 2)
    rig.stores.wait({2})
    assert results(rig.stores) == [(2, None)]


def test_a_lost_device_fails_every_job_once(rig: Rig, monkeypatch) -> None:
    for job_id in (1, 2, 3):
        rig.store(job_id, job_id)

    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for call in ("has_happened", "synchronize", "record", "wait_for_compute"):
        monkeypatch.setattr(rig.runtime, call, lost)
    rig.store(4, 0)
    rig.stores.wait({1, 2, 3, 4})
    reason = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert results(rig.stores) == [(job_id, reason) for job_id in (1, 2, 3, 4)]
    rig.stores.shutdown()
    assert results(rig.stores) == []


def test_nothing_is_started_where_there_is_no_stream(rig: Rig) -> None:
    rig.runtime.fail("new_stream")
    with pytest.raises(RuntimeError, match="new_stream: told to fail"):
        rig.store(1, 0)
    assert results(rig.stores) == []
    rig.store(1, 0)
    rig.stores.shutdown()
    assert results(rig.stores) == [(1, None)]


def test_shutdown_drains_then_unpins(rig: Rig) -> None:
    rig.fill(6)
    rig.store(1, 1)
    rig.load(2, 1)
    rig.stores.shutdown()
    assert rig.runtime.pinned != {}
    rig.loads.shutdown()
    rig.loads.shutdown()
    assert rig.runtime.pinned == {}
    assert (rig.rows[1] == 6).all()
    assert results(rig.stores) + results(rig.loads) == [(1, None), (2, None)]
    with pytest.raises(ValueError, match="copy job 3: the copy engine has been shut down"):
        rig.store(3, 0)


def test_memory_outlives_an_engine_that_was_dropped() -> None:
    runtime = FakeCudaRuntime()
    rows = np.zeros(PAGE, dtype=np.uint8)
    source = np.full(PAGE, 3, dtype=np.uint8)
    watched = weakref.ref(rows)
    engine = CudaCopyEngine(
        runtime, Direction.TO_HOST, pin_memory(runtime, [(rows.ctypes.data, PAGE)], rows)
    )  # fmt: skip
    seen: list[object] = []
    pointers = (np.array([source.ctypes.data]), np.array([rows.ctypes.data]), np.array([PAGE]))
    engine.submit(1, *pointers, memory=(rows,))
    runtime.on_compute(lambda: None)
    weakref.finalize(rows, lambda: seen.append([call for call in runtime.calls if call.startswith(("sync", "unpin"))]))
    del rows, engine
    gc.collect()
    assert watched() is None
    assert seen == [["synchronize event 2", "unpin"]]


def test_tc_93_memory_that_cannot_be_pinned_is_copied_piece_by_piece(caplog) -> None:
    runtime = FakeCudaRuntime()
    rows = np.zeros((3, PAGE), dtype=np.uint8)
    ranges = [(row.ctypes.data, PAGE) for row in rows]
    runtime.fail("pin", after=2)
    with caplog.at_level(logging.INFO):
        assert pin_memory(runtime, ranges, rows) is None
    assert runtime.pinned == {}
    assert runtime.calls.count("unpin") == 2
    assert ["cannot pin host memory" in record.message for record in caplog.records] == [True]
    assert "pin: told to fail" in caplog.text
    rig = Rig(runtime, pinned=False)
    rig.fill(5)
    rig.store(1, 0, num_pieces=2)
    rig.stores.wait({1})
    assert results(rig.stores) == [(1, None)]
    assert (rig.rows[0] == 5).all()
    assert "copy_each of 2 to host on stream 1" in runtime.calls


def test_a_device_without_batches_copies_piece_by_piece() -> None:
    rig = Rig(FakeCudaRuntime(can_batch=False))
    rig.store(1, 0, num_pieces=2)
    assert "copy_each of 2 to host on stream 1" in rig.runtime.calls
