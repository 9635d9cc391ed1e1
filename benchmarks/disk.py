"""The disk tier on the core's loop, against plain direct reads or writes in the same directory, and against itself
without a checksum over the rows; then what its index costs."""

from __future__ import annotations

import mmap
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from benchmarks import disk_index
from benchmarks.comparison import Comparison, Scale, alternate, check
from benchmarks.plain_file import PlainFile
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.secondary_tier import TransferJob
from tiering.testing import fill_row, row_matches
from tiers.disk import slot_io
from tiers.disk.config import DiskConfig
from tiers.disk.slot_io import slot_bytes_for
from tiers.disk.tier import DiskTier

__all__ = ["measure"]

_ROW_SIZES = (256 * 2**10, 2**20, 4 * 2**20)
_PLAIN_THREADS = (4, 8, 16)
_THREADS = DiskConfig.model_fields["threads"].default
_JOB_BYTES = 16 * 2**20


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure stores and loads for each row size. Direct I/O, where the directory has it: no page cache helps."""
    for row_bytes in _ROW_SIZES:
        with _directory(scale) as directory:
            yield from _compare(directory, row_bytes, scale)
    with _directory(scale) as directory:
        yield from disk_index.measure(directory, scale)


@contextmanager
def _directory(scale: Scale) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="tiering-benchmark-", dir=scale.directory))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def _compare(directory: Path, row_bytes: int, scale: Scale) -> Iterator[Comparison]:
    rows = _Rows(max(1, scale.moved_bytes // row_bytes), row_bytes)
    tier = _OpenTier(directory, rows)
    is_direct = tier.is_direct
    plain = PlainFile(directory / "plain", rows.views, direct=is_direct)
    plain_keys = _Keys(b"plain", len(rows.views))

    def write(num_threads: int) -> float:
        rows.fill(plain_keys.renew())
        return plain.write(num_threads)

    def read(num_threads: int) -> float:
        rows.clear()
        seconds = plain.read(num_threads)
        rows.check(plain_keys.now, "the bytes of the plain file")
        return seconds

    writes = [partial(write, num_threads) for num_threads in _PLAIN_THREADS]
    reads = [partial(read, num_threads) for num_threads in _PLAIN_THREADS]
    try:
        store, load, *rest = alternate(
            scale.rounds, tier.store, tier.load, tier.store_unchecked, tier.load_unchecked, *writes, *reads
        )
    finally:
        tier.close()
        plain.close()
    how = "direct" if is_direct else "buffered"
    unchecked, plain_writes, plain_reads = rest[:2], rest[2 : 2 + len(writes)], rest[2 + len(writes) :]
    for case, call, ours, without, others in (
        ("store", "pwrite", store, unchecked[0], plain_writes),
        ("load", "pread", load, unchecked[1], plain_reads),
    ):
        best = min(others)
        what = f"{case} rows of {row_bytes // 1024} KiB"
        num_threads = _PLAIN_THREADS[others.index(best)]
        cpu_seconds = tier.median_cpu_seconds(case)
        yield Comparison.per_byte(
            what, f"{how} {call}, {num_threads} threads", rows.num_bytes, ours, best, cpu_seconds=cpu_seconds
        )
        yield Comparison.per_byte(what, "the same without a checksum", rows.num_bytes, ours, without)


class _Rows:
    """Page-aligned memory, row after row."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.num_bytes = num_rows * row_bytes
        memory = memoryview(mmap.mmap(-1, self.num_bytes))
        self.views = [memory[start : start + row_bytes] for start in range(0, self.num_bytes, row_bytes)]

    def select(self, rows: Sequence[int]) -> list[memoryview]:
        """Return views to lend, which are released when a job has ended."""
        return [self.views[row][:] for row in rows]

    def fill(self, keys: Sequence[OffloadKey]) -> None:
        for row, key in zip(self.views, keys, strict=True):
            fill_row(row, key)

    def clear(self) -> None:
        for row in self.views:
            np.asarray(row)[:] = 0

    def check(self, keys: Sequence[OffloadKey], what: str) -> None:
        check(all(map(row_matches, self.views, keys)), what)


class _Keys:
    """The keys of one round after another."""

    def __init__(self, name: bytes, count: int) -> None:
        self._name = name
        self._count = count
        self._round = 0
        self.now: list[OffloadKey] = []

    def renew(self) -> list[OffloadKey]:
        self._round += 1
        self.now = [make_offload_key(self._name + b"%d" % self._round, number) for number in range(self._count)]
        return self.now


class _OpenTier:
    """The tier as the manager drives it: jobs go in, results are polled."""

    def __init__(self, directory: Path, rows: _Rows) -> None:
        self._rows = rows
        self._keys = _Keys(b"tier", len(rows.views))
        self._num_jobs = 0
        self._cpu_seconds: dict[str, list[float]] = {}
        config = DiskConfig(
            type="disk",
            root_dirs=(directory / "tier",),
            capacity=len(rows.views) * slot_bytes_for(rows.row_bytes),
            threads=_THREADS,
        )
        self._worker = TierWorker(
            lambda context: DiskTier(config, context),
            JobLoop(),
            rows.select,
            name="disk",
            row_bytes=rows.row_bytes,
            namespace=Namespace("benchmark", row_bytes=rows.row_bytes),
            num_threads=_THREADS,
        )

    def store(self) -> float:
        return self._store("store")

    def load(self) -> float:
        return self._load("load")

    def store_unchecked(self) -> float:
        with _without_checksums():
            return self._store("store without a checksum")

    def load_unchecked(self) -> float:
        with _without_checksums():
            return self._load("load without a checksum")

    def _store(self, case: str) -> float:
        self._rows.fill(self._keys.renew())
        return self._run(case, self._worker.submit_store)

    def _load(self, case: str) -> float:
        self._rows.clear()
        seconds = self._run(case, self._worker.submit_load)
        self._rows.check(self._keys.now, "the bytes that the tier has loaded")
        return seconds

    @property
    def is_direct(self) -> bool:
        """Whether the tier bypasses the page cache, as it says itself."""
        return self._worker.describe().startswith("O_DIRECT")

    def median_cpu_seconds(self, case: str) -> float:
        return median(self._cpu_seconds[case][1:])

    def close(self) -> None:
        self._worker.shutdown()

    def _run(self, case: str, submit: Callable[[TransferJob], None]) -> float:
        jobs = self._jobs()
        open_jobs = {job.job_id for job in jobs}
        cpu_began, began = time.process_time(), time.perf_counter()
        for job in jobs:
            submit(job)
        while open_jobs:
            for result in self._worker.get_finished_jobs():
                check(all(result.succeeded), f"every row of a {case}: {result.error}")
                open_jobs.remove(result.job_id)
            time.sleep(0.0005)  # a schedule step
        seconds = time.perf_counter() - began
        self._cpu_seconds.setdefault(case, []).append(time.process_time() - cpu_began)
        return seconds

    def _jobs(self) -> list[TransferJob]:
        rows_per_job = max(1, _JOB_BYTES // self._rows.row_bytes)
        jobs = []
        for start in range(0, len(self._keys.now), rows_per_job):
            self._num_jobs += 1
            keys = self._keys.now[start : start + rows_per_job]
            jobs.append(TransferJob(self._num_jobs, tuple(keys), tuple(range(start, start + len(keys)))))
        return jobs


def _without_checksums() -> AbstractContextManager[object]:
    """Let rows count as verified, whatever they hold."""
    return patch.object(slot_io, "xxhash", SimpleNamespace(xxh3_64_intdigest=lambda row: 0))
