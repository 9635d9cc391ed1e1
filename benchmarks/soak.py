"""``python -m benchmarks.soak``: hours of trouble in minutes, then a look at what is left.

A trace is replayed over rows of a shared region and four tiers: one in memory that goes wrong in every way in turn, a
disk, a disk in a process that is killed again and again, and a bucket of a real object store behind a proxy that goes
wrong in every way in turn. Every loaded byte is compared. Then many short requests, with aborts and failures, show
whether anything that is remembered grows.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from benchmarks.soak_bookkeeping import play_short_requests
from benchmarks.soak_engine import MAX_CHUNKS, Killer, PacedEngine, endless_requests, make_spec, time_calls
from benchmarks.soak_proxy import HTTP_FAULTS, FaultyStore
from benchmarks.soak_report import Phase, Report
from benchmarks.soak_rows import RowDevice
from benchmarks.soak_tier import TIER_FAULTS, SoakTier
from tiering.registry import register_tier
from tiering.replay.leaks import find_leaks
from tiering.replay.trace import TraceRequest
from tiering.testing import Fault, FaultSchedule, LeakError, ResourceWatch

_CONCURRENCY = 32
_FAULTY_SHARE = 0.3
_SECONDS_PER_ROUND = 300.0
_NUM_REQUESTS_BEFORE = 500
"""After which every tier has what it will have."""
_MOST_TRIES = 6
"""How many times a phase is repeated until its fault has happened, or until the hit rate is back."""
_WIDTH = 140


def soak(
    seconds: Annotated[float, typer.Option(min=5, help="how long the replay lasts, about")] = 600.0,
    requests: Annotated[int, typer.Option(min=100, help="short requests after it")] = 200_000,
    seed: Annotated[int, typer.Option(help="seed of the faults and their order")] = 1,
    client: Annotated[Literal["obstore", "s3fs"], typer.Option(help="client library of the object tier")] = "obstore",
    save: Annotated[Path | None, typer.Option(help="a file that the summary is written to as well")] = None,
) -> None:
    """Replay under every fault; exit code 1 if a promise was broken, with a line that says which."""
    report = Report()
    others = _child_processes()
    with tempfile.TemporaryDirectory(prefix="tiering-soak-") as directory:
        try:
            with FaultyStore(seed) as store:
                replay = Soak(report, store, seconds, seed)
                replay.open_and_close(Path(directory) / "first", client)
                with ResourceWatch():
                    replay.run(Path(directory) / "second", client)
        except LeakError as error:
            report.problems.append(str(error))
        shared_memory = Path(directory) / "second" / "shared-memory"
        report.problems += [f"{path.name} is left in shared memory" for path in shared_memory.iterdir()]
        report.problems += [f"process {pid} is left" for pid in _child_processes() - others]
    report.problems += play_short_requests(requests)
    report.lines += [
        f"{requests:,} short requests: nothing that is remembered may grow",
        f"seed {seed}, client {client}, {os.cpu_count()} processors, load average {os.getloadavg()[1]:.1f}",
    ]
    report.show(Console(width=_WIDTH))
    if save is not None:
        with save.open("w") as file:
            report.show(Console(file=file, width=_WIDTH))
    raise typer.Exit(1 if report.problems else 0)


def _child_processes() -> set[str]:
    children: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # the thread has ended
            children.update((task / "children").read_text().split())
    return children


class Soak:
    """One replay: one fault at a time, with time to recover after each."""

    def __init__(self, report: Report, store: FaultyStore, seconds: float, seed: int) -> None:
        self._report = report
        self._store = store
        self._seed = seed
        self._faults: list[Fault | str] = [*TIER_FAULTS, *HTTP_FAULTS]
        self._num_rounds = max(1, int(seconds / _SECONDS_PER_ROUND))
        self._phase_seconds = seconds / (self._num_rounds * 2 * len(self._faults) + 1)

    def open_and_close(self, directory: Path, client: str) -> None:
        """Have libraries allocate what they keep for the life of the process."""
        make_spec(directory, self._store.settings(), client).get_manager().shutdown()

    def run(self, directory: Path, client: str) -> None:
        """Fill the report."""
        spec = make_spec(directory, self._store.settings(), client)
        self._manager = manager = spec.get_manager()
        try:
            self._faulty = SoakTier.made[-1].faulty
            self._killer = Killer(manager)
            time_calls(manager, self._report.call_microseconds)
            assert spec.region is not None
            device = RowDevice(spec.region.row_views)
            self._engine = PacedEngine(manager, device, concurrency=_CONCURRENCY, max_prompt_blocks=MAX_CHUNKS)
            self._requests = endless_requests(self._seed)
            self._replay()
        finally:
            began = time.monotonic()
            manager.shutdown()
            self._report.lines.append(f"shutdown took {time.monotonic() - began:.1f} s")

    def _replay(self) -> None:
        order = random.Random(self._seed)
        report = self._report
        self._engine.run(itertools.islice(self._requests, _NUM_REQUESTS_BEFORE))
        usual = self._phase("no fault", None)
        report.phases.append(usual)
        faults = [fault for _ in range(self._num_rounds) for fault in order.sample(self._faults, len(self._faults))]
        rss_at_half = 0
        for number, fault in enumerate(faults):
            self._let_happen(fault)
            self._recover(_name(fault), usual)
            if number == len(faults) // 2 - 1:  # after one round what every kind of fault needs was allocated once
                rss_at_half = report.phases[-1].rss_bytes
        self._check(rss_at_half, report.phases[-1].rss_bytes)

    def _phase(self, name: str, fault: Fault | str | None) -> Phase:
        counts, faulty = self._engine.counts, self._faulty
        before = (counts.requests, counts.prefix_hits, counts.accesses, faulty.faults.total())
        hits_before = counts.hits.copy()
        faulty.is_on = isinstance(fault, Fault)
        if isinstance(fault, Fault):
            faulty.schedule = FaultSchedule(self._seed, {fault: _FAULTY_SHARE}, stuck_seconds=1.0)
        self._store.switch(fault if isinstance(fault, str) else "")
        began = time.monotonic()
        self._engine.run(self._until(began + self._phase_seconds))
        seconds = time.monotonic() - began
        counts.lookup_seconds.clear()
        after = (counts.requests, counts.prefix_hits, counts.accesses, faulty.faults.total())
        requests, hits, accesses, faults = (now - then for now, then in zip(after, before, strict=True))
        faults += self._store.switch("")
        hits_of_tiers = counts.hits - hits_before
        return Phase(name, seconds, requests, hits / max(1, accesses), hits_of_tiers, faults, _rss_bytes())

    def _let_happen(self, fault: Fault | str) -> None:
        for _ in range(_MOST_TRIES):
            self._report.phases.append(phase := self._phase(_name(fault), fault))
            if phase.faults:
                return
        self._report.problems.append(f"{_name(fault)} has never happened")

    def _recover(self, name: str, usual: Phase) -> None:
        for _ in range(_MOST_TRIES):
            self._report.phases.append(phase := self._phase(f"after {name}", None))
            if phase.hit_rate >= 0.8 * usual.hit_rate:
                return
        self._report.problems.append(f"after {name} the hit rate is {phase.hit_rate:.1%}, not {usual.hit_rate:.1%}")

    def _until(self, deadline: float) -> Iterator[TraceRequest]:
        while time.monotonic() < deadline:
            self._killer.kill_if_due()
            yield next(self._requests)

    def _check(self, rss_at_half: int, rss_after: int) -> None:
        counts, report = self._engine.counts, self._report
        stats = self._manager.get_stats()
        num_ends = stats["tiers"]["isolated"]["process_ends"]
        report.problems += find_leaks(stats, self._manager.primary_tier.rows.num_busy())
        if counts.mismatches or counts.failed_copies:
            report.problems.append(f"{counts.mismatches} chunks had wrong bytes, {counts.failed_copies} copies failed")
        if not 1 <= self._killer.num_kills <= num_ends:
            report.problems.append(f"{self._killer.num_kills} kills, and the process has ended {num_ends} times")
        if rss_after > 1.05 * rss_at_half:
            report.problems.append(f"memory grew from {rss_at_half} to {rss_after} bytes")
        for tier, found in stats["tiers"].items():
            shown = ("stored_chunks", "loaded_chunks", "load_failures", "load_timeouts", "corrupt", "breaker_opened")
            report.lines.append(f"tier {tier}: " + ", ".join(f"{found[name]:,} {name}" for name in shown))
            if not found["loaded_chunks"]:
                report.problems.append(f"nothing was ever loaded from tier {tier}")
        report.lines += [
            f"{sum(phase.seconds for phase in report.phases):.0f} s at concurrency {_CONCURRENCY}: "
            f"{counts.requests:,} requests, {counts.prefix_hits:,} chunks compared, {counts.mismatches} mismatches, "
            f"{self._killer.num_kills} kills",
            f"memory of the engine at half time {rss_at_half / 2**20:.0f} MiB, at the end {rss_after / 2**20:.0f} MiB",
        ]


def _name(fault: Fault | str) -> str:
    return f"tier: {fault.name}" if isinstance(fault, Fault) else f"http: {fault}"


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    for name in ("tiering", "tiers", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    register_tier(SoakTier)
    typer.run(soak)
