"""Both directions of one worker, over one set of CPU tensors (seed, chapter 7)."""

from __future__ import annotations

import torch

from tiering.device.host_copy_engine import HostCopyEngine
from tiering.device.kv_caches import CanonicalKVCaches
from tiering.device.single_direction_handler import SingleDirectionOffloadingHandler
from tiering.region import SharedOffloadRegion

__all__ = ["CpuGpuOffloadingHandlers"]


class CpuGpuOffloadingHandlers:
    """A worker's handlers for stores and for loads.

    Attributes:
        gpu_to_cpu_handler: stores.
        cpu_to_gpu_handler: loads.
        cpu_tensors: int8 of shape ``(num_cpu_blocks, page_bytes * block_size_factor)`` each, one per KV tensor and in
            the same order: views of the region's column, or private memory.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        block_size_factor: int,
        num_cpu_blocks: int,
        mmap_region: SharedOffloadRegion | None = None,
    ) -> None:
        """Take the CPU tensors and start one copy thread per direction.

        Args:
            kv_caches: the worker's KV tensors.
            block_size_factor: device blocks per row.
            num_cpu_blocks: number of rows.
            mmap_region: where the rows lie; without it they are private to this worker.

        Raises:
            ValueError: the region has another number of rows or too small a column, or the KV tensors are not in host
                memory; no thread was started.
        """
        for kv_tensor in kv_caches.tensors:
            if kv_tensor.tensor.device.type != "cpu":
                raise ValueError(f"KV tensors on {kv_tensor.tensor.device} cannot be copied yet; allowed: cpu")
        if block_size_factor < 1:
            raise ValueError(f"block_size_factor is {block_size_factor}; allowed: 1 or more")
        if mmap_region is not None and mmap_region.num_blocks != num_cpu_blocks:
            raise ValueError(f"the region has {mmap_region.num_blocks} rows, but num_cpu_blocks is {num_cpu_blocks}")
        row_pages = [kv_tensor.page_size_bytes * block_size_factor for kv_tensor in kv_caches.tensors]
        if mmap_region is None:
            self.cpu_tensors = [torch.zeros((num_cpu_blocks, page), dtype=torch.int8) for page in row_pages]
        else:
            self.cpu_tensors = [mmap_region.create_next_view(page) for page in row_pages]
        gpu_tensors = [kv_tensor.tensor for kv_tensor in kv_caches.tensors]
        shared = (gpu_tensors, self.cpu_tensors, block_size_factor, kv_caches.group_data_refs)
        self.gpu_to_cpu_handler = SingleDirectionOffloadingHandler(
            *shared, gpu_to_cpu=True, copy_engine=HostCopyEngine("tiering-store")
        )
        self.cpu_to_gpu_handler = SingleDirectionOffloadingHandler(
            *shared, gpu_to_cpu=False, copy_engine=HostCopyEngine("tiering-load")
        )
