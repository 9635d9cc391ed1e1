"""``python -m benchmarks.soak``: hours of trouble in minutes, then a look at what is left.

A trace is replayed over rows of a shared region, a memory tier that goes wrong in every way in turn, a disk tier, and
a disk tier in a process that is killed again and again; every loaded byte is compared. Then many short requests, with
aborts and failures, show whether anything that is remembered grows.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.soak_bookkeeping import play_short_requests
from benchmarks.soak_rows import RowDevice
from benchmarks.soak_tier import FAULTS, SoakTier
from tiering.config_file import parse_config
from tiering.engine_config import EngineConfig, KVGroup
from tiering.isolation import IsolatedTier
from tiering.manager import TieringOffloadingManager
from tiering.quantities import format_bytes
from tiering.registry import register_tier
from tiering.replay.engine import ReplayEngine
from tiering.replay.generator import TOKENS_PER_BLOCK, generate_trace
from tiering.replay.leaks import find_leaks
from tiering.replay.trace import TraceRequest
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.testing import Fault, FaultSchedule, ResourceWatch

ROW_BYTES = 65536
NUM_ROWS = 400
CONCURRENCY = 32
FAULTY_SHARE = 0.3
SECONDS_BETWEEN_KILLS = 20.0
NUM_ROUNDS = 2
TIMED_CALLS = (
    "lookup_prefix",
    "prepare_load",
    "complete_load",
    "prepare_store",
    "complete_store",
    "on_request_finished",
    "on_schedule_end",
    "has_pending_work",
)


@dataclass(frozen=True, slots=True)
class Phase:
    """What happened while one fault was on, or while none was.

    Attributes:
        name: which fault.
        requests, hit_rate: served, and the share of their chunks that were loaded.
        faults: how often the fault has happened.
        rss_bytes: memory in use at the end.
    """

    name: str
    requests: int
    hit_rate: float
    faults: int
    rss_bytes: int


@dataclass(slots=True)
class Report:
    """What the soak has found; ``problems`` is empty if all is well."""

    phases: list[Phase] = field(default_factory=list)
    call_microseconds: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in TIMED_CALLS}
    )
    mismatches: int = 0
    kills: int = 0
    rss_before: int = 0
    rss_after: int = 0
    problems: list[str] = field(default_factory=list)


def quantile(microseconds: Counter[int], share: float) -> int:
    """Return the duration below which this share of the calls lay."""
    ordered = sorted(microseconds)
    running = itertools.accumulate(microseconds[us] for us in ordered)
    wanted = share * microseconds.total()
    return next((us for us, below in zip(ordered, running, strict=True) if below >= wanted), 0)


def soak(
    seconds: Annotated[float, typer.Option(min=5, help="how long the replay lasts")] = 600.0,
    requests: Annotated[int, typer.Option(min=100, help="short requests after it")] = 200_000,
    seed: Annotated[int, typer.Option(help="seed of the faults")] = 1,
) -> None:
    """Replay under every fault; exit code 1 if a byte was wrong, anything is left over, or anything has grown."""
    logging.getLogger("tiering").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    report = Report()
    register_tier(SoakTier)
    with tempfile.TemporaryDirectory(prefix="tiering-soak-") as directory, ResourceWatch():
        replay_under_faults(Path(directory), seconds, seed, report)
    report.problems += play_short_requests(requests)
    show(report, seconds, requests)
    raise typer.Exit(1 if report.problems else 0)


def replay_under_faults(directory: Path, seconds: float, seed: int, report: Report) -> None:
    """Serve the same requests over and over: one fault at a time, with time to recover after each."""
    trace = list(itertools.islice(generate_trace(seed), 60))
    longest = max(len(request.hash_ids) for request in trace)
    spec = make_spec(directory)
    manager = spec.get_manager()
    try:
        assert spec.region is not None
        killer = Killer(manager)
        time_calls(manager, report.call_microseconds)
        device = RowDevice(spec.region.row_views)
        engine = ReplayEngine(manager, device, concurrency=CONCURRENCY, max_prompt_blocks=longest)
        served = itertools.cycle(trace)
        faulty = SoakTier.made[-1].faulty

        def run(name: str, fault: Fault | None) -> Phase:
            faulty.schedule = FaultSchedule(seed, {fault: FAULTY_SHARE} if fault else {}, stuck_seconds=1.0)
            faulty.is_on = fault is not None
            before = (engine.counts.requests, engine.counts.prefix_hits, engine.counts.accesses, faulty.faults.total())
            deadline = time.monotonic() + seconds / (NUM_ROUNDS * 2 * len(FAULTS) + 2)
            engine.run(until(deadline, served, killer))
            engine.counts.lookup_seconds.clear()
            after = (engine.counts.requests, engine.counts.prefix_hits, engine.counts.accesses, faulty.faults.total())
            num_requests, hits, accesses, faults = (now - then for now, then in zip(after, before, strict=True))
            return Phase(name, num_requests, hits / max(1, accesses), faults, rss_bytes())

        run("start", None)
        usual = run("no fault", None)
        report.phases.append(usual)
        for number, fault in enumerate(FAULTS * NUM_ROUNDS):
            if number == len(FAULTS):  # what every kind of fault needs for a while has been allocated once
                report.rss_before = rss_bytes()
            phase, after = run(fault.name, fault), run(f"after {fault.name}", None)
            report.phases += [phase, after]
            if not phase.faults:
                report.problems.append(f"{fault.name} has never happened")
            if after.hit_rate < 0.8 * usual.hit_rate:
                report.problems.append(
                    f"after {fault.name} the hit rate is {after.hit_rate:.1%}, not {usual.hit_rate:.1%}"
                )
        report.rss_after = rss_bytes()
        report.mismatches = engine.counts.mismatches
        report.kills = killer.num_kills
        report.problems += find_leaks(manager.get_stats(), manager.primary_tier.rows.num_busy())
        if report.mismatches:
            report.problems.append(f"{report.mismatches} chunks had wrong bytes")
        if report.rss_after > 1.05 * report.rss_before:
            report.problems.append(f"memory grew from {report.rss_before} to {report.rss_after} bytes")
    finally:
        manager.shutdown()


def make_spec(directory: Path) -> TieringOffloadingSpec:
    """Return an engine's spec whose tiers time out, open and recover within a phase."""
    for name in ("shared-memory", "disk", "isolated"):
        (directory / name).mkdir()
    patience = {
        "limits": {"lookup_timeout": "500ms", "load_timeout": "500ms", "store_timeout": "500ms"},
        "breaker": {"open_for": "100ms", "max_open_for": "200ms"},
    }
    disk = {"type": "disk", "root_dirs": [str(directory / "disk")], "capacity": "64MiB"}
    isolated = {"type": "disk", "name": "isolated", "root_dirs": [str(directory / "isolated")], "capacity": "256MiB"}
    config = parse_config(
        {
            "cpu_bytes_to_use": NUM_ROWS * ROW_BYTES,
            "region": {"directory": str(directory / "shared-memory")},
            "secondary_tier_configs": [
                {"type": "soak_memory", "max_chunks": 1_000, **patience},
                disk,
                isolated | patience | {"isolation": "process"},
            ],
        },
        source="soak",
    )
    engine = EngineConfig(
        engine_id=f"soak-{os.getpid()}",
        groups=(KVGroup(TOKENS_PER_BLOCK, (0,)),),
        tensor_page_bytes=(ROW_BYTES,),
        num_device_blocks=1,
        tokens_per_hash=TOKENS_PER_BLOCK,
        model_name="soak",
    )
    return TieringOffloadingSpec(engine, config)


class Killer:
    """Kills the process of the isolated tier from time to time, while the engine goes on."""

    def __init__(self, manager: TieringOffloadingManager) -> None:
        (self._tier,) = (tier._tier for tier in manager._tiers if isinstance(tier._tier, IsolatedTier))
        self._due = time.monotonic() + SECONDS_BETWEEN_KILLS / 4
        self.num_kills = 0

    def kill_if_due(self) -> None:
        """Kill it, if it is time to."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + SECONDS_BETWEEN_KILLS
            with suppress(ProcessLookupError):  # it is being started again
                os.kill(self._tier.pid, signal.SIGKILL)
                self.num_kills += 1


def until(deadline: float, requests: Iterator[TraceRequest], killer: Killer) -> Iterator[TraceRequest]:
    """Yield requests until the time is over."""
    while time.monotonic() < deadline:
        killer.kill_if_due()
        yield next(requests)


def time_calls(manager: TieringOffloadingManager, durations: dict[str, Counter[int]]) -> None:
    """Count how long each call of the scheduler takes, from now on."""

    def timed(call: Callable[..., Any], microseconds: Counter[int]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                microseconds[_rounded((time.perf_counter() - began) * 1e6)] += 1

        return run

    for name in TIMED_CALLS:
        setattr(manager, name, timed(getattr(manager, name), durations[name]))


def _rounded(microseconds: float) -> int:
    """Two digits are enough, and make the number of different durations small."""
    return int(float(f"{microseconds:.2g}"))


def rss_bytes() -> int:
    """Return the memory that this process has in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def show(report: Report, seconds: float, requests: int) -> None:
    """Print what was found."""
    console = Console()
    table = Table("phase", box=None, header_style="bold", pad_edge=False)
    for column in ("requests", "hit rate", "faults", "memory"):
        table.add_column(column, justify="right")
    for phase in report.phases:
        table.add_row(
            phase.name,
            f"{phase.requests:,}",
            f"{phase.hit_rate:.1%}",
            f"{phase.faults:,}",
            format_bytes(phase.rss_bytes),
        )
    console.print(table)
    console.print()
    calls = Table("scheduler call", box=None, header_style="bold", pad_edge=False)
    for column in ("calls", "p50 us", "p99 us", "p99.9 us", "max us"):
        calls.add_column(column, justify="right")
    everything = sum(report.call_microseconds.values(), Counter[int]())
    for name, durations in {**report.call_microseconds, "all": everything}.items():
        found = [quantile(durations, share) for share in (0.5, 0.99, 0.999, 1.0)]
        calls.add_row(name, f"{durations.total():,}", *(f"{us:,}" for us in found))
    console.print(calls)
    console.print(
        f"\n{seconds:g} s at concurrency {CONCURRENCY}, {report.mismatches} mismatches, {report.kills} kills\n"
        f"memory {report.rss_before / 2**20:.0f} MiB -> {report.rss_after / 2**20:.0f} MiB\n"
        f"{requests:,} short requests: nothing that is remembered may grow\n"
        f"problems: {'; '.join(report.problems) or 'none'}"
    )


if __name__ == "__main__":
    typer.run(soak)
