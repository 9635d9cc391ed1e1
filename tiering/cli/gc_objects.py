"""``tiering gc objects``: remove old chunks from stores that engines share."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn

from tiering.cli.gc_choice import Bounds, choose
from tiering.cli.gc_report import GcReport
from tiering.cli.output import Format, FormatOption, print_json
from tiering.config_file import load_config
from tiering.errors import ConfigError
from tiering.inventory import HasInventory, StoredObject
from tiering.job_loop import BlockingThreads, JobLoop
from tiering.naming import Namespace
from tiering.quantities import parse_bytes, parse_duration
from tiering.registry import SecondaryTierFactory, resolve_tier
from tiering.tier import Tier, TierConfig, TierContext

__all__ = ["collect_objects"]

_REMOVED_AT_A_TIME = 256


def _duration(text: str | float) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from None


def _size(text: str | int) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from None


def _fingerprint(text: str) -> str:
    if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
        raise typer.BadParameter(f"{text!r} is no fingerprint; allowed: 32 hex digits, as this command prints them")
    return text


def collect_objects(  # noqa: PLR0917  (typer passes options by keyword)
    config: Annotated[Path, typer.Argument(help="configuration with the tiers to clean")],
    tier: Annotated[str | None, typer.Option(help="name of the only tier to clean; default: all that can be")] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(parser=_fingerprint, metavar="HEX", help="a namespace to clean, again for more; default: all"),
    ] = None,
    older_than: Annotated[
        float | None, typer.Option(parser=_duration, metavar="AGE", help="remove chunks of this age, such as 30d")
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(parser=_size, metavar="SIZE", help="remove the oldest chunks until the rest takes no more"),
    ] = None,
    leftovers_older_than: Annotated[
        float, typer.Option(parser=_duration, metavar="AGE", help="remove writes that have not ended at this age")
    ] = "1d",  # type: ignore[assignment]  # typer parses defaults, too
    dry_run: Annotated[bool, typer.Option("--dry-run", help="remove nothing, only say what would be removed")] = False,
    output: FormatOption = Format.TEXT,
) -> None:
    """Remove old chunks, and what interrupted writes have left, from the stores that a configuration names.

    Engines may go on: what is removed is a miss for them. Exit code 1 if anything could not be removed.
    """
    bounds = Bounds(
        older_than=float("inf") if older_than is None else older_than,
        max_bytes=max_size,
        leftovers_older_than=leftovers_older_than,
        namespaces=frozenset(namespace or ()),
    )
    reports = [_clean(settings, bounds, dry_run) for settings in _tiers(config, tier)]
    if output is Format.JSON:
        print_json([report.as_dict() for report in reports])
    else:
        for report in reports:
            report.print()
    if any(report.num_failed for report in reports):
        raise typer.Exit(1)


def _tiers(file: Path, name: str | None) -> list[TierConfig]:
    config = load_config(file)
    able = {
        settings.name: settings
        for settings in config.secondary_tier_configs
        if issubclass(resolve_tier(settings.type), HasInventory)
    }
    if name is None and able:
        return list(able.values())
    if name in able:
        return [able[name]]
    wanted = "no tier" if name is None else f"no tier {name!r}"
    allowed = ", ".join(map(str, able)) or "one of type s3 or fsspec"
    raise ConfigError(f"{file}: has {wanted} whose store can be cleaned; allowed: {allowed}")


def _clean(settings: TierConfig, bounds: Bounds, dry_run: bool) -> GcReport:
    with _made(settings) as (tier, loop), _progress(f"tier {tier.context.name}") as show:

        async def listed() -> list[StoredObject]:
            found = []
            async for stored in tier.inventory():
                found.append(stored)
                show(f"{len(found)} objects found")
            return found

        found = loop.wait_for(listed())
        chosen = choose(found, bounds, time.time())
        report = GcReport(tier.context.name, dry_run, found)
        for start in range(0, len(chosen), _REMOVED_AT_A_TIME):
            batch = chosen[start : start + _REMOVED_AT_A_TIME]
            show(f"{start} of {len(chosen)} objects removed")
            report.note(batch, [True] * len(batch) if dry_run else loop.wait_for(tier.remove(batch)))
        return report


class _Cleanable(HasInventory, Tier):
    """For type checkers: a tier with an inventory."""


@contextmanager
def _made(settings: TierConfig) -> Iterator[tuple[_Cleanable, JobLoop]]:
    """Make a tier, without opening it: that would write to its store."""
    loop = JobLoop()
    threads = BlockingThreads("tiering-gc", settings.threads)
    context = TierContext(
        name=settings.name or settings.type,
        row_bytes=0,
        namespace=Namespace("", row_bytes=0),
        clock=time.monotonic,
        run_blocking=threads.run,
        report_evicted=lambda keys: None,
    )
    tier = cast(_Cleanable, SecondaryTierFactory.create_secondary_tier(settings, context))
    loop.attach()
    try:
        yield tier, loop
    finally:
        loop.wait_for(tier.close())
        threads.end()
        loop.detach()


@contextmanager
def _progress(what: str) -> Iterator[Callable[[str], None]]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda text: progress.update(task, description=f"{what}: {text}")
