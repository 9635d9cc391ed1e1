"""All ranks of a replay together: commands go to each, a job has ended when each has reported."""

from __future__ import annotations

import dataclasses
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.errors import TieringError
from tiering.keys import OffloadKey
from tiering.replay.device import DeviceJobResult, DeviceTraffic
from tiering.replay.rank_process import RankCommand, RankReport, RankSetup, run_rank
from tiering.transfer_specs import CPULoadStoreSpec

__all__ = ["RankGroup"]


class RankGroup:
    """Processes with device tensors. One thread may use it."""

    def __init__(self, engine: EngineConfig, config: TieringConfig, num_places: int) -> None:
        """Start the ranks and wait until all have joined the region.

        Raises:
            TieringError: a rank could not start; the others are ended again.
        """
        context = multiprocessing.get_context("spawn")
        self._connections: list[Connection] = []
        self._processes = []
        self._reports: dict[int, list[RankReport]] = {}
        self._ended: list[DeviceJobResult] = []
        self._store_seconds = [0.0] * engine.world_size
        self._load_seconds = [0.0] * engine.world_size
        self._traffic = DeviceTraffic()
        try:
            with _interrupts_wait():
                for rank in range(engine.world_size):
                    ours, theirs = context.Pipe()
                    setup = RankSetup(dataclasses.replace(engine, rank=rank), config, num_places)
                    process = context.Process(
                        target=run_rank, args=(theirs, setup), name=f"tiering-rank-{rank}", daemon=True
                    )
                    process.start()
                    theirs.close()
                    self._connections.append(ours)
                    self._processes.append(process)
            for rank in range(engine.world_size):
                problem = self._receive(rank)
                if problem is not None:
                    raise TieringError(f"rank {rank} could not start:\n{problem}")
        except BaseException:
            self.close()
            raise

    def store(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._send(RankCommand(job_id, True, keys, places, rows))

    def load(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._send(RankCommand(job_id, False, keys, places, rows))

    def poll(self, timeout_seconds: float) -> list[DeviceJobResult]:
        for connection in wait(self._connections, timeout_seconds):
            rank = self._connections.index(connection)  # type: ignore[arg-type]
            while self._connections[rank].poll():
                self._take(rank, self._receive(rank))
        ended, self._ended = self._ended, []
        return ended

    def traffic(self) -> DeviceTraffic:
        self._traffic.store_seconds = max(self._store_seconds)
        self._traffic.load_seconds = max(self._load_seconds)
        return self._traffic

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()

    def _send(self, command: RankCommand) -> None:
        self._reports[command.job_id] = []
        for rank, connection in enumerate(self._connections):
            with suppress(BrokenPipeError):  # `_receive` says how the rank has ended
                connection.send(command)
                continue
            self._receive(rank)

    def _receive(self, rank: int) -> object:
        try:
            return self._connections[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join(10)
            code = self._processes[rank].exitcode
            raise TieringError(f"rank {rank} has died with exit code {code}") from None

    def _take(self, rank: int, report: object) -> None:
        if not isinstance(report, RankReport):
            raise TieringError(f"rank {rank} sent {report!r}")
        if report.is_store:
            self._traffic.stored_bytes += report.num_bytes
            self._store_seconds[rank] += report.seconds
        else:
            self._traffic.loaded_bytes += report.num_bytes
            self._load_seconds[rank] += report.seconds
        reports = self._reports[report.job_id]
        reports.append(report)
        if len(reports) == len(self._connections):
            del self._reports[report.job_id]
            self._ended.append(
                DeviceJobResult(
                    report.job_id, all(part.success for part in reports), sum(part.mismatches for part in reports)
                )
            )


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Start processes that never see Ctrl-C, not even before they can say so: they inherit what is blocked here."""
    resource_tracker.ensure_running()  # now: when a first process starts it, it unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
