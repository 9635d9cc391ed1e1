from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from tiering.device import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CpuGpuOffloadingHandlers,
    HostCopyEngine,
    OffloadingWorker,
    SingleDirectionOffloadingHandler,
)
from tiering.device.host_copy import copy_pieces
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec


class GatedCopy:
    """Copies only when the test lets it, one job at a time, and fails the jobs it is told to."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.go = threading.Semaphore(0)
        self.fail_next = False

    def __call__(self, src_ptrs, dst_ptrs, sizes) -> None:
        self.started.release()
        self.go.acquire()
        if self.fail_next:
            self.fail_next = False
            raise OSError("injected")
        copy_pieces(src_ptrs, dst_ptrs, sizes)


@pytest.fixture
def gate() -> GatedCopy:
    return GatedCopy()


@pytest.fixture
def handler(gate: GatedCopy) -> Iterator[SingleDirectionOffloadingHandler]:
    """Stores 8 blocks of 16 bytes, numbered by content, into 4 rows of 2 blocks."""
    device = torch.arange(8, dtype=torch.int8).repeat_interleave(16).reshape(8, 16)
    rows = torch.full((4, 32), -1, dtype=torch.int8)
    refs = [[CanonicalKVCacheRef(0, 16)]]
    handler = SingleDirectionOffloadingHandler(
        [device], [rows], 2, refs, gpu_to_cpu=True, copy_engine=HostCopyEngine(copy=gate)
    )
    yield handler
    for _ in range(20):
        gate.go.release()
    handler.shutdown()


def store(blocks: list[int], rows: list[int]) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
    return GPULoadStoreSpec(blocks, [len(blocks)], [0]), CPULoadStoreSpec(rows)


def test_jobs_of_one_direction_end_in_order_each_with_one_result(handler, gate) -> None:
    for job_id in (5, 3, 9):
        assert handler.transfer_async(job_id, store([job_id % 8], [0]))
    assert handler.get_finished() == []
    for _ in range(3):
        gate.go.release()
    handler.wait({5, 3, 9})
    assert [(r.job_id, r.success, r.transfer_size) for r in handler.get_finished()] == [
        (5, True, 16), (3, True, 16), (9, True, 16),
    ]  # fmt: skip
    assert handler.get_finished() == []
    assert handler.dst_tensors[0][0, :16].tolist() == [1] * 16


def test_wait_blocks_until_the_bytes_are_there(handler, gate) -> None:
    assert handler.transfer_async(1, store([6], [2]))
    assert gate.started.acquire(timeout=60)
    seen = []

    def wait() -> None:
        handler.wait({1, 12345})
        seen.append(handler.dst_tensors[0][2, :16].tolist())

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert seen == []
    gate.go.release()
    waiter.join()
    assert seen == [[6] * 16]


def test_a_failing_copy_is_a_failed_result_and_the_next_one_works(handler, gate, caplog) -> None:
    gate.fail_next = True
    for job_id in (1, 2):
        assert handler.transfer_async(job_id, store([job_id], [job_id]))
        gate.go.release()
        handler.wait({job_id})
    results = [(result.job_id, result.success, result.error) for result in handler.get_finished()]
    assert results == [(1, False, "OSError: injected"), (2, True, None)]
    assert handler.dst_tensors[0][2, :16].tolist() == [2] * 16
    assert "copy job 1 failed" in caplog.text


def test_a_job_id_is_free_again_once_its_result_was_fetched(handler, gate) -> None:
    assert handler.transfer_async(1, store([1], [1]))
    with pytest.raises(ValueError, match="transfer 1 exists already"):
        handler.transfer_async(1, store([2], [2]))
    gate.go.release()
    handler.wait({1})
    with pytest.raises(ValueError, match="transfer 1 exists already"):
        handler.transfer_async(1, store([2], [2]))
    assert len(handler.get_finished()) == 1
    assert handler.transfer_async(1, store([2], [2]))


def test_shutdown_ends_what_was_submitted_and_refuses_more(handler, gate) -> None:
    for job_id in range(4):
        assert handler.transfer_async(job_id, store([job_id], [job_id]))
        gate.go.release()
    handler.shutdown()
    handler.shutdown()
    assert [result.job_id for result in handler.get_finished()] == [0, 1, 2, 3]
    assert handler.dst_tensors[0][:, 0].tolist() == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="has been shut down"):
        handler.transfer_async(9, store([1], [1]))


def test_an_empty_transfer_has_a_result(handler, gate) -> None:
    gate.go.release()
    assert handler.transfer_async(1, store([], []))
    handler.wait({1})
    assert [(r.success, r.transfer_size) for r in handler.get_finished()] == [(True, 0)]


WRONG_SPECS = {
    "too few rows": ((GPULoadStoreSpec([0, 1, 2], [3], [0]), CPULoadStoreSpec([0])), "1 rows given"),
    "too many rows": ((GPULoadStoreSpec([0], [1], [0]), CPULoadStoreSpec([0, 1])), "2 rows given"),
    "too many groups": ((GPULoadStoreSpec([0, 1], [1, 1], [0, 0]), CPULoadStoreSpec([0, 1])), "2 group sizes"),
    "no such block": ((GPULoadStoreSpec([0, 8], [2], [0]), CPULoadStoreSpec([0])), "device block 8"),
    "negative block": ((GPULoadStoreSpec([-1], [1], [0]), CPULoadStoreSpec([0])), "device block -1"),
    "no such row": ((GPULoadStoreSpec([0], [1], [0]), CPULoadStoreSpec([4])), r"row 4 does not exist.*0\.\.3"),
    "wrong direction": ((CPULoadStoreSpec([0]), GPULoadStoreSpec([0], [1], [0])), "not \\('CPU', 'GPU'\\)"),
}


@pytest.mark.parametrize("name", list(WRONG_SPECS))
def test_a_wrong_spec_is_refused_before_anything_is_copied(handler, gate, caplog, name: str) -> None:
    spec, message = WRONG_SPECS[name]
    with pytest.raises(ValueError, match=message):
        handler.transfer_async(1, spec)
    worker = OffloadingWorker()
    worker.register_handler(type(spec[0]), type(spec[1]), handler)
    assert worker.transfer_async(1, spec) is False
    assert f"transfer 1 {(spec[0].medium(), spec[1].medium())} was refused: ValueError" in caplog.text
    worker.wait({1})
    assert worker.get_finished() == []
    assert handler.dst_tensors[0].unique().tolist() == [-1]


def test_the_worker_routes_by_media() -> None:
    device = torch.arange(4, dtype=torch.int8).reshape(4, 1)
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(device, 1)], [[CanonicalKVCacheRef(0, 1)]])
    handlers = CpuGpuOffloadingHandlers(caches, 1, 4)
    worker = OffloadingWorker()
    worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handlers.gpu_to_cpu_handler)
    with pytest.raises(ValueError, match="already have a handler"):
        worker.register_handler(GPULoadStoreSpec, CPULoadStoreSpec, handlers.cpu_to_gpu_handler)
    stored = (GPULoadStoreSpec([1, 2], [2], [0]), CPULoadStoreSpec([0, 3]))
    assert worker.transfer_async(1, stored[::-1]) is False
    worker.register_handler(CPULoadStoreSpec, GPULoadStoreSpec, handlers.cpu_to_gpu_handler)
    assert worker.transfer_async(1, stored)
    worker.wait({1})
    assert worker.transfer_async(2, (stored[1], GPULoadStoreSpec([3, 0], [2], [0])))
    worker.wait({1, 2})
    assert {(r.job_id, r.transfer_type) for r in worker.get_finished()} == {(1, ("GPU", "CPU")), (2, ("CPU", "GPU"))}
    assert device.flatten().tolist() == [2, 1, 2, 1]
    worker.shutdown()


def test_tensors_that_do_not_fit_are_refused() -> None:
    def tensor(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.int8)

    with pytest.raises(ValueError, match="pages of 16 bytes, not 15"):
        CanonicalKVCacheTensor(tensor(4, 16), 15)
    with pytest.raises(ValueError, match=r"allowed: int8 of shape"):
        CanonicalKVCacheTensor(torch.zeros(4, 16), 16)
    with pytest.raises(ValueError, match=r"contiguous pages"):
        CanonicalKVCacheTensor(tensor(16, 4).T, 16)
    page = CanonicalKVCacheTensor(tensor(4, 16), 16)
    with pytest.raises(ValueError, match=r"group 0: .* names none of the 1 tensors"):
        CanonicalKVCaches([page], [[CanonicalKVCacheRef(1, 16)]])
    with pytest.raises(ValueError, match=r"group 1: .* allowed are 1 to 16 bytes"):
        CanonicalKVCaches([page], [[], [CanonicalKVCacheRef(0, 17)]])
    elsewhere = CanonicalKVCaches([CanonicalKVCacheTensor(tensor(4, 16).to("meta"), 16)], [[]])
    with pytest.raises(ValueError, match="KV tensors on meta"):
        CpuGpuOffloadingHandlers(elsewhere, 1, 4)
    engine = HostCopyEngine()
    for cpu_tensors, message in [
        ([], "1 device tensors, but 0"),
        ([tensor(4, 31)], "31 bytes does not hold exactly 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            SingleDirectionOffloadingHandler([page.tensor], cpu_tensors, 2, [[]], gpu_to_cpu=True, copy_engine=engine)
    engine.shutdown()


def test_copies_let_other_threads_run() -> None:
    """The interpreter lock is free during a copy: this thread counts while 64 MiB move many times over."""
    memory = np.zeros(2 * 2**26, dtype=np.uint8)
    source = np.array([memory.ctypes.data] * 20)
    engine = HostCopyEngine()
    engine.submit(1, source, source + 2**26, np.full(20, 2**26))
    turns = 0
    while not engine.poll():
        turns += 1
    engine.shutdown()
    assert turns > 200
