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
from tiering.keys import OffloadKey
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.testing.patterns import key_pattern
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec

__all__ = ["RankCommand", "RankReport", "RankSetup", "run_rank"]

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
        blocks = self._blocks(command.places)
        device = GPULoadStoreSpec(blocks.ravel(), [blocks.size], [0])
        if command.is_store:
            for key, place in zip(command.keys, command.places, strict=True):
                self._pages(place, self._pattern(key))
            started = self._worker.transfer_async(command.job_id, (device, command.rows))
        else:
            for tensor in self._tensors:
                tensor.numpy()[blocks.ravel()] = np.int8(_STALE - 256)
            started = self._worker.transfer_async(command.job_id, (command.rows, device))
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
                    not self._matches(place, self._pattern(key))
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

    def _blocks(self, places: Sequence[int]) -> npt.NDArray[np.int64]:
        return np.asarray(places, np.int64)[:, None] * self._factor + np.arange(self._factor)

    def _pattern(self, key: OffloadKey) -> npt.NDArray[np.int8]:
        """This rank's bytes of a chunk: tensor after tensor, block after block."""
        pattern = key_pattern(key + bytes([self._rank or 0]), self._spec.layout.worker_page_bytes)
        return pattern.view(np.int8)

    def _pages(self, place: int, pattern: npt.NDArray[np.int8]) -> None:
        for page, expected in self._parts(place, pattern):
            page[:] = expected

    def _matches(self, place: int, pattern: npt.NDArray[np.int8]) -> bool:
        return all(np.array_equal(page, expected) for page, expected in self._parts(place, pattern))

    def _parts(
        self, place: int, pattern: npt.NDArray[np.int8]
    ) -> list[tuple[npt.NDArray[np.int8], npt.NDArray[np.int8]]]:
        parts = []
        begin = 0
        for tensor in self._tensors:
            pages = tensor.numpy()[place * self._factor : (place + 1) * self._factor]
            parts.append((pages, pattern[begin : begin + pages.size].reshape(pages.shape)))
            begin += pages.size
        return parts


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
