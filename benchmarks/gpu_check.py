"""``python -m benchmarks.gpu_check``: is the device path right and fast on this machine's GPU? Prints JSON.

Needs the repository, torch and numpy, and cuda-bindings for batched copies; takes less than four minutes. Without a GPU
it says so. The exit code is 1 where a check failed.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
import torch

from tiering.device import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    CpuGpuOffloadingHandlers,
    CudaCopyEngine,
    CudaRuntime,
    Direction,
    OffloadingHandler,
    SingleDirectionOffloadingHandler,
)
from tiering.device.pinned_memory import pin_memory
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.region.memory_limits import find_limits
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec, TransferSpec

__all__ = ["Machine", "check_orders", "check_shapes", "check_unpinned", "measure_speeds"]

_TIME_LIMIT_SECONDS = 220


@dataclass(frozen=True, slots=True)
class Machine:
    """What is checked.

    Attributes:
        device: where the KV tensors are.
        runtime: how they are copied.
        on_compute: runs a function whose kernels go to the compute stream.
        stay_busy: keeps the compute stream busy for some milliseconds.
    """

    device: torch.device
    runtime: CudaRuntime
    on_compute: Callable[[Callable[[], object]], object]
    stay_busy: Callable[[], object]


def check_shapes(machine: Machine, num_shapes: int) -> dict[str, object]:
    """Store and load random blocks of random tensors through a region of two ranks; compare all bytes, also untouched.

    Raises:
        RuntimeError: a byte is wrong.
    """
    rng = np.random.default_rng(1)
    for shape in range(num_shapes):
        factor = int(rng.choice([1, 2, 4]))
        pages = [int(page) for page in rng.choice([64, 1000, 4096, 16384], size=rng.integers(1, 5))]
        size, skip = int(rng.integers(1, 20)), int(rng.integers(0, factor))
        num_rows = -(-(size + skip) // factor)
        host = [rng.integers(-128, 128, (40, page), dtype=np.int8) for page in pages]
        tensors = [torch.from_numpy(pages_of_one).to(machine.device, copy=True) for pages_of_one in host]
        with _region(30, sum(pages) * factor) as region:
            handlers = _handlers(machine, tensors, factor, 30, region)
            rows = CPULoadStoreSpec(rng.permutation(30)[:num_rows])
            stored, loaded = rng.permutation(40)[:size], rng.permutation(40)[:size]
            _run(handlers.gpu_to_cpu_handler, (GPULoadStoreSpec(stored, [size], [skip]), rows))
            for tensor in tensors:
                tensor.fill_(0x5A)
            _run(handlers.cpu_to_gpu_handler, (rows, GPULoadStoreSpec(loaded, [size], [skip])))
            handlers.shutdown()
            for source, tensor in zip(host, tensors, strict=True):
                expected = np.full_like(source, 0x5A)
                expected[loaded] = source[stored]
                _demand(np.array_equal(tensor.cpu().numpy(), expected), f"shape {shape}: {pages} x {factor}")
    return {"shapes": num_shapes}


def check_orders(machine: Machine, num_rounds: int) -> dict[str, object]:
    """Store what a kernel is about to write, and load over what a kernel is about to clear.

    Raises:
        RuntimeError: a copy came too early, or submitting waited for the kernel.
    """
    page = 2**16
    tensor = torch.zeros((4, page), dtype=torch.int8, device=machine.device)
    handlers = _handlers(machine, [tensor], 1, 4)
    rows = handlers.cpu_tensors[0]
    submit_seconds = []
    for turn in range(num_rounds):
        block, value = turn % 4, turn % 100 + 1
        spec = (GPULoadStoreSpec([block], [1], [0]), CPULoadStoreSpec([block]))
        machine.stay_busy()
        machine.on_compute(partial(tensor[block].fill_, value))
        began = time.perf_counter()
        handlers.gpu_to_cpu_handler.transfer_async(turn, spec)
        submit_seconds.append(time.perf_counter() - began)
        _finish(handlers.gpu_to_cpu_handler, turn)
        _demand(bool((rows[block] == value).all()), f"round {turn}: the store came before the kernel")
        machine.stay_busy()
        machine.on_compute(tensor[block].zero_)
        _run(handlers.cpu_to_gpu_handler, spec[::-1])
        _demand(bool((tensor[block] == value).all()), f"round {turn}: the load came before the kernel")
    handlers.shutdown()
    return {"rounds": num_rounds, "submit_microseconds": round(median(submit_seconds) * 1e6, 1)}


def check_unpinned(machine: Machine) -> dict[str, object]:
    """Let pinning fail half way, see that nothing stays pinned and that copies work all the same.

    Raises:
        RuntimeError: otherwise.
    """
    tensor = torch.arange(4 * 4096, dtype=torch.int64, device=machine.device).to(torch.int8).reshape(4, 4096)
    rows = torch.zeros((4, 4096), dtype=torch.int8)
    memory = (rows.data_ptr(), rows.nbytes)
    _demand(pin_memory(machine.runtime, [memory, (0, 4096)], rows) is None, "pinning no memory at all must fail")
    pinned = pin_memory(machine.runtime, [memory], rows)
    _demand(pinned is not None, "what was pinned before the failure must be free to be pinned again")
    del pinned
    expected = tensor.cpu()
    blocks, spec = GPULoadStoreSpec(range(4), [4], [0]), CPULoadStoreSpec([3, 1, 0, 2])
    for direction in Direction:
        to_host = direction is Direction.TO_HOST
        handler = SingleDirectionOffloadingHandler(
            [tensor], [rows], 1, [[CanonicalKVCacheRef(0, 4096)]],
            gpu_to_cpu=to_host, copy_engine=CudaCopyEngine(machine.runtime, direction, None),
        )  # fmt: skip
        _run(handler, (blocks, spec) if to_host else (spec, blocks))
        handler.shutdown()
        if to_host:
            tensor.zero_()
    _demand(torch.equal(tensor.cpu(), expected), "bytes copied without pinning")
    return {}


def measure_speeds(machine: Machine, piece_sizes: list[int], num_bytes: int, rounds: int) -> dict[str, object]:
    """Return GB/s (medians of wall time): plain copies of one pinned tensor, and ours by piece size.

    Raises:
        RuntimeError: a byte is wrong.
    """
    flat = torch.zeros(num_bytes, dtype=torch.int8, device=machine.device)
    plain = torch.zeros(num_bytes, dtype=torch.int8, pin_memory=machine.device.type == "cuda")
    result: dict[str, object] = {
        "plain copy_ to host": _speed(rounds, num_bytes, partial(plain.copy_, flat)),
        "plain copy_ to device": _speed(rounds, num_bytes, partial(flat.copy_, plain)),
    }
    batches = [True, False] if machine.runtime.can_batch else [False]
    for piece_bytes, can_batch in product(piece_sizes, batches):
        name = f"{piece_bytes // 1024} KiB pieces, {'one batch' if can_batch else 'one call per piece'}"
        result[name] = _piece_speeds(machine, flat, piece_bytes, rounds, can_batch=can_batch)
    return result


def _piece_speeds(
    machine: Machine, flat: torch.Tensor, piece_bytes: int, rounds: int, *, can_batch: bool
) -> dict[str, float]:
    num_blocks, num_bytes = len(flat) // piece_bytes, flat.nbytes
    tensor = flat.reshape(num_blocks, piece_bytes)
    tensor.copy_(torch.arange(num_blocks, device=machine.device).to(torch.int8).reshape(-1, 1).expand_as(tensor))
    rng = np.random.default_rng(2)
    blocks, rows = rng.permutation(num_blocks), rng.permutation(num_blocks)
    spec = (GPULoadStoreSpec(blocks, [num_blocks], [0]), CPULoadStoreSpec(rows))
    could_batch, machine.runtime.can_batch = machine.runtime.can_batch, can_batch
    try:
        with _region(num_blocks, piece_bytes, num_columns=1) as region:
            handlers = _handlers(machine, [tensor], 1, num_blocks, region)
            store, load = handlers.gpu_to_cpu_handler, handlers.cpu_to_gpu_handler

            def both() -> None:
                # The same bytes in both directions: no block changes, whichever copy comes first.
                store.transfer_async(1, spec)
                load.transfer_async(1, spec[::-1])
                _finish(store, 1)
                _finish(load, 1)

            speeds = {
                "to host": _speed(rounds, num_bytes, lambda: _run(store, spec)),
                "to device": _speed(rounds, num_bytes, lambda: _run(load, spec[::-1])),
                "both at once": _speed(rounds, 2 * num_bytes, both),
            }
            stored = handlers.cpu_tensors[0][torch.from_numpy(rows), 0].numpy()
            _demand(np.array_equal(stored, blocks.astype(np.int8)), f"rows of {piece_bytes} bytes")
            handlers.shutdown()
    finally:
        machine.runtime.can_batch = could_batch
    return speeds


def _handlers(
    machine: Machine,
    tensors: list[torch.Tensor],
    factor: int,
    num_rows: int,
    region: SharedOffloadRegion | None = None,
) -> CpuGpuOffloadingHandlers:
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in tensors],
        [[CanonicalKVCacheRef(index, tensor.shape[1]) for index, tensor in enumerate(tensors)]],
    )
    return CpuGpuOffloadingHandlers(caches, factor, num_rows, region, cuda_runtime=machine.runtime)


@contextmanager
def _region(num_rows: int, column_bytes: int, num_columns: int = 2) -> Iterator[SharedOffloadRegion | None]:
    """Open a region as its last rank; None where this machine's shared memory is too small, as in many containers."""
    total = RegionLayout(num_rows, num_columns, column_bytes).total_bytes
    if min(limit.available_bytes for limit in find_limits(Path("/dev/shm"))) < total + 2**20:
        yield None
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-gpu-check-") as directory:
        region = SharedOffloadRegion(
            "gpu-check", total, num_rows, num_columns - 1, num_columns, column_bytes, directory=directory
        )
        try:
            yield region
        finally:
            region.cleanup()


def _run(handler: OffloadingHandler, spec: TransferSpec) -> None:
    _demand(handler.transfer_async(1, spec), "a transfer was refused")
    _finish(handler, 1)


def _finish(handler: OffloadingHandler, job_id: int) -> None:
    handler.wait({job_id})
    (result,) = handler.get_finished()
    _demand(result.success, f"transfer {job_id}: {result.error}")


def _speed(rounds: int, num_bytes: int, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return round(num_bytes / median(seconds[1:]) / 1e9, 2)


def _demand(is_so: bool, what: str) -> None:
    if not is_so:
        raise RuntimeError(what)


def _facts(machine: Machine) -> dict[str, object]:
    versions: dict[str, str | None] = {"torch": torch.__version__, "cuda of torch": torch.version.cuda}
    try:
        versions["cuda-bindings"] = importlib.metadata.version("cuda-bindings")
    except importlib.metadata.PackageNotFoundError:
        versions["cuda-bindings"] = None
    return {
        "gpu": torch.cuda.get_device_name(machine.device),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "versions": {**versions, "numpy": np.__version__, "python": platform.python_version()},
        "copies": machine.runtime.copy_method,
    }


def _real_machine() -> Machine:
    from tiering.device.torch_cuda_runtime import TorchCudaRuntime  # noqa: PLC0415 - only where there is a device

    device = torch.device("cuda", torch.cuda.current_device())
    left, right = (torch.randn((4096, 4096), device=device) for _ in range(2))

    def stay_busy() -> None:
        for _ in range(8):
            torch.matmul(left, right)

    return Machine(device, TorchCudaRuntime(device), lambda work: work(), stay_busy)


def main() -> int:
    """Run all checks and print what was found; return the exit code."""
    if not torch.cuda.is_available():
        print(json.dumps({"gpu": None, "reason": f"torch {torch.__version__} sees no CUDA device"}))
        return 0
    began = time.monotonic()
    machine = _real_machine()
    report = _facts(machine)
    failed = False
    sizes = [2**exponent for exponent in range(14, 23)]
    checks: dict[str, Callable[[], dict[str, object]]] = {
        "store and load of random shapes": lambda: check_shapes(machine, 200),
        "copies wait for kernels": lambda: check_orders(machine, 200),
        "memory that cannot be pinned": lambda: check_unpinned(machine),
        "GB/s": lambda: measure_speeds(machine, sizes, 2**30, 5),
    }
    for name, check in checks.items():
        if time.monotonic() - began > _TIME_LIMIT_SECONDS / 2:
            report[name] = "skipped: the checks before took too long"
            continue
        try:
            report[name] = {"passed": True, **check()}
        except Exception as error:
            report[name] = {"passed": False, "error": f"{type(error).__name__}: {error}"}
            failed = True
    report["seconds"] = round(time.monotonic() - began, 1)
    print(json.dumps(report, indent=2))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
