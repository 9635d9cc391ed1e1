"""Which engine copies, and that it is said."""

from __future__ import annotations

import logging

import pytest
import torch

from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, CpuGpuOffloadingHandlers
from tiering.device.torch_cuda_runtime import TorchCudaRuntime
from tiering.testing.fake_cuda import FakeCudaRuntime


def caches(*devices: str) -> CanonicalKVCaches:
    tensors = [torch.zeros((4, 16), dtype=torch.int8, device=device) for device in devices]
    refs = [[CanonicalKVCacheRef(index, 16) for index in range(len(devices))]]
    return CanonicalKVCaches([CanonicalKVCacheTensor(tensor, 16) for tensor in tensors], refs)


@pytest.mark.parametrize(
    ("runtime", "fails", "method"),
    [
        (None, False, "2 thread(s) per direction"),
        (FakeCudaRuntime(), False, "fake batch"),
        (FakeCudaRuntime(can_batch=False), False, "fake copies one by one"),
        (FakeCudaRuntime(), True, "one call per piece (memory is not pinned)"),
    ],
)
def test_the_choice_is_made_once_and_said(runtime, fails: bool, method: str, caplog) -> None:
    if fails:
        runtime.fail("pin")
    with caplog.at_level(logging.INFO):
        handlers = CpuGpuOffloadingHandlers(caches("cpu"), 1, 4, copy_threads=2, cuda_runtime=runtime)
    assert handlers.copy_method == method
    assert [method in record.getMessage() for record in caplog.records].count(True) == 1
    handlers.shutdown()
    handlers.shutdown()


@pytest.mark.parametrize("devices", [("meta",), ("cpu", "meta")])
def test_other_devices_are_refused(devices: tuple[str, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"KV tensors on (cpu, )?meta cannot be copied; allowed: all on cpu, or all on"
    ):
        CpuGpuOffloadingHandlers(caches(*devices), 1, 4)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_is_refused() -> None:
    with pytest.raises(ValueError, match="this build of torch has no CUDA; tensors on cuda:0 cannot be copied"):
        TorchCudaRuntime(torch.device("cuda:0"))


def test_expandable_segments_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: True")
    with pytest.raises(ValueError, match="allowed: PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True"):
        TorchCudaRuntime(torch.device("cuda:0"))
