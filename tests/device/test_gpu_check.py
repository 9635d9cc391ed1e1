"""The checks for a GPU: on one where there is one, and on the fake device, to check the checks themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_check import Machine, check_orders, check_shapes, check_unpinned, main, measure_speeds
from tiering.testing.fake_cuda import FakeCudaRuntime

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fake() -> Machine:
    runtime = FakeCudaRuntime()
    return Machine(torch.device("cpu"), runtime, runtime.on_compute, lambda: runtime.on_compute(lambda: None))


def test_the_checks_pass_on_a_device_that_is_right(fake: Machine) -> None:
    assert check_shapes(fake, 20) == {"shapes": 20}
    assert check_orders(fake, 10)["rounds"] == 10
    assert check_unpinned(fake) == {}
    speeds = measure_speeds(fake, [2**14, 2**16], 2**20, 1)
    assert len(speeds) == 2 + 2 * 2
    assert speeds["64 KiB pieces, one batch"].keys() == {"to host", "to device", "both at once"}
    assert fake.runtime.pinned == {}


def test_a_copy_that_does_not_wait_is_found(fake: Machine, monkeypatch) -> None:
    monkeypatch.setattr(fake.runtime, "wait_for_compute", lambda _: None)
    with pytest.raises(RuntimeError, match="round 0: the store came before the kernel"):
        check_orders(fake, 10)


def test_a_copy_of_wrong_bytes_is_found(fake: Machine, monkeypatch) -> None:
    copy = fake.runtime.copy_batch
    monkeypatch.setattr(fake.runtime, "copy_batch", lambda s, src, *rest: copy(s, src + 1, *rest))
    with pytest.raises(RuntimeError, match=r"shape \d+: "):
        check_shapes(fake, 20)


def test_a_failed_pin_that_leaves_memory_pinned_is_found(fake: Machine, monkeypatch) -> None:
    monkeypatch.setattr(fake.runtime, "unpin", lambda _: None)
    with pytest.raises(RuntimeError, match="must be free to be pinned again"):
        check_unpinned(fake)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_no_figure_is_shown() -> None:
    command = [sys.executable, "-m", "benchmarks.gpu_check"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    reason = f"torch {torch.__version__} sees no CUDA device"
    assert json.loads(done.stdout) == {"gpu": None, "reason": reason}


def test_it_needs_torch_and_numpy_only() -> None:
    program = "import sys, benchmarks.gpu_check; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not {"pydantic", "pluggy", "yaml", "typer", "rich", "xxhash", "cuda"} & set(done.stdout.split())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_checks_pass_on_this_gpu(capsys) -> None:
    assert main() == 0
    assert json.loads(capsys.readouterr().out)["gpu"]
