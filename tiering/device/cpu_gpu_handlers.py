"""Both directions of one worker, over one set of CPU tensors (seed, chapter 7)."""

from __future__ import annotations

import logging
import mmap
from collections.abc import Iterable, Set

import numpy as np
import torch

from tiering.device.copy_engine import CopyEngine
from tiering.device.cuda_copy_engine import CudaCopyEngine
from tiering.device.cuda_runtime import CudaRuntime, Direction
from tiering.device.host_copy_engine import HostCopyEngine
from tiering.device.kv_caches import CanonicalKVCaches
from tiering.device.pinned_memory import pin_memory
from tiering.device.single_direction_handler import SingleDirectionOffloadingHandler
from tiering.device.store_turns import StoreTurns
from tiering.region import SharedOffloadRegion

__all__ = ["CpuGpuOffloadingHandlers"]

logger = logging.getLogger(__name__)


class CpuGpuOffloadingHandlers:
    """A worker's handlers for stores and for loads. KV tensors on a CUDA device or in host memory.

    Attributes:
        gpu_to_cpu_handler: stores.
        cpu_to_gpu_handler: loads.
        cpu_tensors: int8 of shape ``(num_cpu_blocks, page_bytes * block_size_factor)`` each, one per KV tensor and in
            the same order: views of the region's column, or private memory.
        copy_method: how bytes are copied, for people.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        block_size_factor: int,
        num_cpu_blocks: int,
        mmap_region: SharedOffloadRegion | None = None,
        *,
        copy_threads: int = 1,
        copy_cpus: Set[int] | None = None,
        cuda_runtime: CudaRuntime | None = None,
    ) -> None:
        """Wait for the region's pages, take the CPU tensors, pin them if there is a device, and start what copies.

        Args:
            kv_caches: the worker's KV tensors, all on one device.
            block_size_factor: device blocks per row.
            num_cpu_blocks: number of rows.
            mmap_region: where the rows lie; without it they are private to this worker. If its column is shared by
                ranks that hold the same KV, they take turns in storing.
            copy_threads, copy_cpus: see `HostCopyEngine`; per direction, and only for KV tensors in host memory.
            cuda_runtime: the device, where it is not torch's own.

        Raises:
            ValueError: the region has another number of rows or too small a column, or the KV tensors are not all on
                one device that can be copied from; nothing was started or pinned.
            RegionError: the region's pages could not be had; likewise.
        """
        if block_size_factor < 1:
            raise ValueError(f"block_size_factor is {block_size_factor}; allowed: 1 or more")
        if mmap_region is not None and mmap_region.num_blocks != num_cpu_blocks:
            raise ValueError(f"the region has {mmap_region.num_blocks} rows, but num_cpu_blocks is {num_cpu_blocks}")
        runtime = cuda_runtime or _runtime_of(kv_caches)
        row_pages = [kv_tensor.page_size_bytes * block_size_factor for kv_tensor in kv_caches.tensors]
        turns: StoreTurns | None = None
        ranges: Iterable[tuple[int, int]]
        if mmap_region is None:
            self.cpu_tensors = [_private_rows(num_cpu_blocks, page) for page in row_pages]
            ranges = [(tensor.data_ptr(), tensor.nbytes) for tensor in self.cpu_tensors]
        else:
            mmap_region.wait_until_ready()
            self.cpu_tensors = [mmap_region.create_next_view(page) for page in row_pages]
            ranges = mmap_region.column_ranges()
            turns = StoreTurns(mmap_region.replica, mmap_region.num_replicas)
        to_host: CopyEngine
        to_device: CopyEngine
        if runtime is None:
            to_host = HostCopyEngine("tiering-store", num_threads=copy_threads, cpus=copy_cpus)
            to_device = HostCopyEngine("tiering-load", num_threads=copy_threads, cpus=copy_cpus)
            self.copy_method = f"{copy_threads} thread(s) per direction"
        else:
            pinned = pin_memory(runtime, ranges, self.cpu_tensors)
            to_host = CudaCopyEngine(runtime, Direction.TO_HOST, pinned)
            to_device = CudaCopyEngine(runtime, Direction.TO_DEVICE, pinned)
            self.copy_method = runtime.copy_method if pinned else "one call per piece (memory is not pinned)"
        logger.info("copies between device blocks and rows: %s", self.copy_method)
        tensors = [kv_tensor.tensor for kv_tensor in kv_caches.tensors]
        shared = (tensors, self.cpu_tensors, block_size_factor, kv_caches.group_data_refs)
        self.gpu_to_cpu_handler = SingleDirectionOffloadingHandler(
            *shared, gpu_to_cpu=True, copy_engine=to_host, turns=turns
        )
        self.cpu_to_gpu_handler = SingleDirectionOffloadingHandler(*shared, gpu_to_cpu=False, copy_engine=to_device)

    def shutdown(self) -> None:
        """Block until all transfers have ended, then give everything back. Later calls do nothing."""
        self.gpu_to_cpu_handler.shutdown()
        self.cpu_to_gpu_handler.shutdown()


def _runtime_of(kv_caches: CanonicalKVCaches) -> CudaRuntime | None:
    """Return the device that the KV tensors are on, or None for host memory."""
    devices = {kv_tensor.tensor.device for kv_tensor in kv_caches.tensors}
    if {device.type for device in devices} <= {"cpu"}:
        return None
    if len(devices) > 1 or {device.type for device in devices} != {"cuda"}:
        found = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"KV tensors on {found} cannot be copied; allowed: all on cpu, or all on one cuda device")
    from tiering.device.torch_cuda_runtime import TorchCudaRuntime  # noqa: PLC0415 - only where there is a device

    return TorchCudaRuntime(devices.pop())


def _private_rows(num_rows: int, row_bytes: int) -> torch.Tensor:
    # Whole pages of its own, because two tensors in one page cannot both be pinned.
    memory = mmap.mmap(-1, num_rows * row_bytes)
    return torch.from_numpy(np.frombuffer(memory, dtype=np.int8).reshape(num_rows, row_bytes))
