"""vLLM's `OffloadingWorker` over our device path. The worker's main thread only."""

from __future__ import annotations

import logging
from collections.abc import Set
from dataclasses import dataclass

from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult

from tiering.device import OffloadingHandler
from tiering.transfer_specs import CPULoadStoreSpec, TransferSpec
from tiering.transfer_specs import GPULoadStoreSpec as DeviceBlocks
from tiering_vllm.v030.rows_spec import RowsLoadStoreSpec

__all__ = ["TieringWorkerAdapter"]

logger = logging.getLogger(__name__)

_MAX_ATTEMPTS = 4


@dataclass(slots=True)
class _Transfer:
    handler: OffloadingHandler
    spec: TransferSpec
    attempts: int = 1


class TieringWorkerAdapter(OffloadingWorker):
    """Copies between device blocks and rows.

    vLLM stops when a copy is reported as failed, so one that fails is tried again first: until it is reported its rows
    stay pinned, and its device blocks stay the request's.
    """

    def __init__(self, store_handler: OffloadingHandler, load_handler: OffloadingHandler) -> None:
        """Take both directions; they are shut down with this."""
        self._store_handler = store_handler
        self._load_handler = load_handler
        self._transfers: dict[int, _Transfer] = {}
        self._results: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        return self._submit(job_id, self._store_handler, (_device_blocks(src_spec), _rows(dst_spec)))

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        return self._submit(job_id, self._load_handler, (_rows(src_spec), _device_blocks(dst_spec)))

    def get_finished(self) -> list[TransferResult]:
        self._collect()
        results, self._results = self._results, []
        return results

    def wait(self, job_ids: Set[int]) -> None:
        """Block until each of these transfers has ended for good: a repeated one reads the same blocks again."""
        while unfinished := job_ids & self._transfers.keys():
            self._store_handler.wait(unfinished)
            self._load_handler.wait(unfinished)
            self._collect()

    def shutdown(self) -> None:
        self._store_handler.shutdown()
        self._load_handler.shutdown()

    def _submit(self, job_id: int, handler: OffloadingHandler, spec: TransferSpec) -> bool:
        if not handler.transfer_async(job_id, spec):
            return False
        self._transfers[job_id] = _Transfer(handler, spec)
        return True

    def _collect(self) -> None:
        for result in self._store_handler.get_finished() + self._load_handler.get_finished():
            transfer = self._transfers[result.job_id]
            if not result.success and transfer.attempts < _MAX_ATTEMPTS:
                transfer.attempts += 1
                logger.warning("transfer %d failed and is repeated: %s", result.job_id, result.error)
                transfer.handler.transfer_async(result.job_id, transfer.spec)
                continue
            if not result.success:
                logger.error(
                    "transfer %d failed %d times; vLLM stops at this: %s", result.job_id, _MAX_ATTEMPTS, result.error
                )
            del self._transfers[result.job_id]
            self._results.append(
                TransferResult(result.job_id, result.success, result.transfer_size, result.transfer_time)
            )


def _rows(spec: LoadStoreSpec) -> CPULoadStoreSpec:
    if not isinstance(spec, RowsLoadStoreSpec):
        raise TypeError(f"{type(spec).__name__} is no transfer of ours; allowed: RowsLoadStoreSpec")
    return CPULoadStoreSpec(spec.rows)


def _device_blocks(spec: GPULoadStoreSpec) -> DeviceBlocks:
    return DeviceBlocks(spec.block_ids, spec.group_sizes, spec.block_indices)
