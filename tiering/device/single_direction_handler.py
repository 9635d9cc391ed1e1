"""Stores or loads: transfers in one direction, in the order submitted (seed, chapter 7.2)."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch

from tiering.device.copy_engine import CopyEngine
from tiering.device.kv_caches import CanonicalKVCacheRef, check_block_tensor
from tiering.device.offloading_handler import OffloadingHandler, TransferResult
from tiering.device.store_turns import StoreTurns
from tiering.device.transfer_plan import TransferPlanner
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec, TransferSpec, TransferType

__all__ = ["SingleDirectionOffloadingHandler"]


class SingleDirectionOffloadingHandler(OffloadingHandler):
    """Plans transfers between device blocks and rows, and has a copy engine carry them out.

    Attributes:
        src_tensors, dst_tensors: what it copies between; kept alive as long as the handler.
        transfer_type: (source medium, destination medium).
    """

    def __init__(
        self,
        gpu_tensors: Sequence[torch.Tensor],
        cpu_tensors: Sequence[torch.Tensor],
        block_size_factor: int,
        kv_cache_groups_data_refs: Sequence[Sequence[CanonicalKVCacheRef]],
        *,
        gpu_to_cpu: bool,
        copy_engine: CopyEngine,
        turns: StoreTurns | None = None,
    ) -> None:
        """Check the tensors.

        Args:
            gpu_tensors: int8, ``(num_device_blocks, page_bytes)`` each.
            cpu_tensors: int8, ``(num_rows, page_bytes * block_size_factor)`` each, in the same order.
            block_size_factor: device blocks per row.
            kv_cache_groups_data_refs: per KV-cache group, which tensors it uses.
            gpu_to_cpu: the direction; True stores, False loads.
            copy_engine: moves the bytes; this handler's own, shut down with it.
            turns: which rows are left to other ranks that hold the same KV; None for none of them.

        Raises:
            ValueError: the tensors do not fit each other.
        """
        if len(gpu_tensors) != len(cpu_tensors):
            raise ValueError(f"{len(gpu_tensors)} device tensors, but {len(cpu_tensors)} CPU tensors")
        for index, (gpu, cpu) in enumerate(zip(gpu_tensors, cpu_tensors, strict=True)):
            check_block_tensor(gpu, f"device tensor {index}")
            check_block_tensor(cpu, f"CPU tensor {index}")
            if cpu.shape[1] != gpu.shape[1] * block_size_factor:
                raise ValueError(
                    f"tensor {index}: a CPU page of {cpu.shape[1]} bytes does not hold exactly {block_size_factor} "
                    f"device pages of {gpu.shape[1]}"
                )
        self.src_tensors, self.dst_tensors = (gpu_tensors, cpu_tensors) if gpu_to_cpu else (cpu_tensors, gpu_tensors)
        gpu_medium, cpu_medium = GPULoadStoreSpec.medium(), CPULoadStoreSpec.medium()
        self.transfer_type: TransferType = (gpu_medium, cpu_medium) if gpu_to_cpu else (cpu_medium, gpu_medium)
        self._gpu_to_cpu = gpu_to_cpu
        self._turns = turns
        self._memory = (tuple(gpu_tensors), tuple(cpu_tensors))
        self._planner = TransferPlanner(gpu_tensors, cpu_tensors, kv_cache_groups_data_refs, block_size_factor)
        self._copy_engine = copy_engine
        self._num_bytes: dict[int, int] = {}

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Start a transfer and return True.

        Raises:
            ValueError: the job id has a transfer whose result was not fetched yet, the specs are of the wrong kind or
                shape, or the handler was shut down. Nothing is copied.
        """
        if job_id in self._num_bytes:
            raise ValueError(f"transfer {job_id} exists already")
        device, rows = spec if self._gpu_to_cpu else reversed(spec)
        if not (isinstance(device, GPULoadStoreSpec) and isinstance(rows, CPULoadStoreSpec)):
            raise ValueError(f"this handler moves {self.transfer_type}, not {(spec[0].medium(), spec[1].medium())}")
        pieces = self._planner.plan(device, rows, self._turns)
        src, dst = pieces.device_ptrs, pieces.row_ptrs
        if not self._gpu_to_cpu:
            src, dst = dst, src
        self._copy_engine.submit(job_id, src, dst, pieces.sizes, self._memory)
        self._num_bytes[job_id] = pieces.num_bytes
        return True

    def get_finished(self) -> list[TransferResult]:
        return [
            TransferResult(
                job_id=result.job_id,
                success=result.error is None,
                transfer_size=self._num_bytes.pop(result.job_id),
                transfer_time=result.seconds,
                transfer_type=self.transfer_type,
                error=result.error,
            )
            for result in self._copy_engine.poll()
        ]

    def wait(self, job_ids: Set[int]) -> None:
        self._copy_engine.wait(job_ids)

    def shutdown(self) -> None:
        self._copy_engine.shutdown()
