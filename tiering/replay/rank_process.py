"""One rank of a replay: a process with device tensors of its own, joined to the shared region.

The engine's worker in small: it "computes" chunks by filling device blocks with the pattern of their key, copies them
with the real handlers, and compares what a load has brought with the same pattern.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tiering.config import TieringConfig
from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, OffloadingWorker
from tiering.engine_config import EngineConfig
from tiering.keys import OffloadKey, get_offload_group_idx
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.testing.patterns import key_pattern
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["RankCommand", "RankReport", "RankSetup", "run_rank"]

Pages = npt.NDArray[np.int8]

_STALE = 0xEE
"""What device blocks hold before a load, so that a copy that did not happen shows."""


@dataclass(frozen=True, slots=True)
class RankSetup:
    """What a rank is made of.

    Attributes:
        engine: the engine's facts, with this process's rank.
        config: the configuration.
        num_places: chunks that fit on the device.
    """

    engine: EngineConfig
    config: TieringConfig
    num_places: int


class RankCommand(NamedTuple):
    """A job for every rank."""

    job_id: int
    is_store: bool
    keys: Sequence[OffloadKey]
    places: Sequence[int]
    rows: CPULoadStoreSpec


class RankReport(NamedTuple):
    """One rank's part of a job."""

    job_id: int
    is_store: bool
    success: bool
    mismatches: int
    num_bytes: int
    seconds: float


class _Rank:
    def __init__(self, setup: RankSetup) -> None:
        engine = setup.engine
        self._spec = TieringOffloadingSpec(engine, setup.config)
        self._factor = self._spec.block_size_factor
        self._rank = engine.rank
        self._groups = engine.groups
        self._tensors = [
            torch.zeros((setup.num_places * self._factor, page), dtype=torch.int8) for page in engine.tensor_page_bytes
        ]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(tensor, tensor.shape[1]) for tensor in self._tensors],
            [
                [CanonicalKVCacheRef(idx, engine.tensor_page_bytes[idx]) for idx in group.tensor_indices]
                for group in engine.groups
            ],
        )
        self._worker = OffloadingWorker()
        for src, dst, handler in self._spec.get_handlers(caches):
            self._worker.register_handler(src, dst, handler)
        self._open: dict[int, RankCommand] = {}

    def start(self, command: RankCommand) -> RankReport | None:
        """Begin a job; returns its report if it could not even begin."""
        device, rows = self._sides(command)
        if command.is_store:
            for key, place in zip(command.keys, command.places, strict=True):
                for pages, expected in self._parts(key, place):
                    pages[:] = expected
            started = self._worker.transfer_async(command.job_id, (device, rows))
        else:
            for key, place in zip(command.keys, command.places, strict=True):
                for pages, _ in self._parts(key, place):
                    pages[:] = np.int8(_STALE - 256)
            started = self._worker.transfer_async(command.job_id, (rows, device))
        if not started:
            return RankReport(command.job_id, command.is_store, False, 0, 0, 0.0)
        self._open[command.job_id] = command
        return None

    def finished(self) -> list[RankReport]:
        """Return the jobs that have ended; loads are compared first."""
        reports = []
        for result in self._worker.get_finished():
            command = self._open.pop(result.job_id)
            wrong = 0
            if result.success and not command.is_store:
                wrong = sum(
                    not all(np.array_equal(pages, expected) for pages, expected in self._parts(key, place))
                    for key, place in zip(command.keys, command.places, strict=True)
                )
            reports.append(
                RankReport(
                    result.job_id,
                    command.is_store,
                    result.success,
                    wrong,
                    result.transfer_size or 0,
                    result.transfer_time or 0.0,
                )
            )
        return reports

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        self._worker.shutdown()
        if self._spec.region is not None:
            self._spec.region.cleanup()

    def _sides(self, command: RankCommand) -> tuple[GPULoadStoreSpec, CPULoadStoreSpec]:
        """Return both sides of a transfer, its chunks in the order of their groups."""
        num_groups = len(self._groups)
        groups = np.array([get_offload_group_idx(key) for key in command.keys], np.int64)
        order = np.argsort(groups, kind="stable")
        blocks = np.asarray(command.places, np.int64)[order, None] * self._factor + np.arange(self._factor)
        sizes = np.bincount(groups, minlength=num_groups) * self._factor
        device = GPULoadStoreSpec(blocks.ravel(), sizes.tolist(), [0] * num_groups)
        return device, CPULoadStoreSpec(command.rows.block_ids[order])

    def _parts(self, key: OffloadKey, place: int) -> list[tuple[Pages, Pages]]:
        """Return a chunk's pages in each tensor of its group, and what they should hold on this rank."""
        pages = [
            self._tensors[idx].numpy()[place * self._factor : (place + 1) * self._factor]
            for idx in self._groups[get_offload_group_idx(key)].tensor_indices
        ]
        pattern = key_pattern(key + bytes([self._rank or 0]), sum(page.size for page in pages)).view(np.int8)
        ends = np.cumsum([page.size for page in pages])
        return [
            (page, pattern[end - page.size : end].reshape(page.shape)) for page, end in zip(pages, ends, strict=True)
        ]


def run_rank(connection: Connection, setup: RankSetup) -> None:
    """Serve commands until the connection ends. The main function of a rank's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine ends its ranks
    torch.set_num_threads(1)
    try:
        rank = _Rank(setup)
    except Exception:
        connection.send(traceback.format_exc())
        return
    try:
        connection.send(None)
        while True:
            if connection.poll(0.0002 if rank.is_busy else None):
                command = connection.recv()
                report = rank.start(command)
                if report is not None:
                    connection.send(report)
            for report in rank.finished():
                connection.send(report)
    except (EOFError, ConnectionError):
        pass  # the engine has closed the connection, or was killed
    finally:
        rank.close()
