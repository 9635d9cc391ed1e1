"""``tiering replay``: serve a request trace and check every byte."""

from __future__ import annotations

import itertools
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiering.cli.output import Format, FormatOption, print_json
from tiering.config_file import load_config
from tiering.errors import TraceError
from tiering.quantities import parse_bytes
from tiering.registry import resolve_policy
from tiering.replay.generator import generate_trace
from tiering.replay.report import ReplayReport
from tiering.replay.trace import TraceRequest, read_trace

__all__ = ["replay"]


def _size(text: str | int) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}") from None


def _row_count(text: str) -> int | None:
    if text == "inf":
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise typer.BadParameter(f"{text!r} is not a positive number or inf", param_hint="'--secondary-rows'")
    return int(text)


def replay(  # noqa: PLR0917  (typer passes options by keyword)
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="configuration with the tiers to replay against", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="trace file (JSONL, also .gz or .xz); default: generated requests")
    ] = None,
    generate: Annotated[int, typer.Option(min=1, help="how many requests to generate where no trace is given")] = 500,
    seed: Annotated[int, typer.Option(help="seed of the generated requests")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="stop after so many requests of the trace")] = None,
    ranks: Annotated[int, typer.Option(min=1, max=64, help="worker processes with device tensors")] = 2,
    row_bytes: Annotated[int, typer.Option(parser=_size, metavar="SIZE", help="bytes of a row over all ranks")] = 65536,
    groups: Annotated[int, typer.Option(min=1, max=3, help="KV-cache groups, with unequal pages")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="requests at a time; 1 gives repeatable counts")] = 8,
    primary_rows: Annotated[
        int | None, typer.Option(min=1, help="rows of the primary; default: what cpu_bytes_to_use holds")
    ] = None,
    no_bytes: Annotated[
        bool, typer.Option("--no-bytes", help="only count hits: no data, no ranks, no configuration")
    ] = False,
    policy: Annotated[
        str | None, typer.Option(help="eviction policy of the primary; default: as configured, else lru")
    ] = None,
    secondary_rows: Annotated[
        str | None,
        typer.Option(metavar="N|inf", help="with --no-bytes: chunks in a second tier; default: no such tier"),
    ] = None,
    forward_touch: Annotated[
        bool, typer.Option(help="with --no-bytes: let each request's recency reach the second tier")
    ] = True,
    output: FormatOption = Format.TEXT,
) -> None:
    """Serve a request trace with the real manager; with bytes, compare every chunk that is loaded.

    Exit code 1 if any byte was wrong or anything is left over at the end, 2 on wrong usage.
    """
    if policy is not None:
        resolve_policy(policy)
    if no_bytes and config is not None:
        raise typer.BadParameter("--no-bytes replays without a configuration")
    if no_bytes and primary_rows is None:
        raise typer.BadParameter("--no-bytes needs --primary-rows")
    if not no_bytes and config is None:
        raise typer.BadParameter("--config is missing; or count hits only, with --no-bytes")
    if not no_bytes and (secondary_rows is not None or not forward_touch):
        raise typer.BadParameter("--secondary-rows and --no-forward-touch go with --no-bytes")
    if no_bytes and _are_given(context, "ranks", "row_bytes", "groups"):
        raise typer.BadParameter("--ranks, --row-bytes and --groups go with --config")
    if trace is not None and _are_given(context, "generate", "seed"):
        raise typer.BadParameter("--generate and --seed go without --trace")
    num_secondary_rows = 0 if secondary_rows is None else _row_count(secondary_rows)
    if output is Format.TEXT:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("tiering").setLevel(logging.INFO)  # what each tier found when it opened
    requests = _requests(trace, generate, seed, limit)
    concurrency = min(concurrency, len(requests))
    with _progress() as progress:
        task = progress.add_task("replay", total=len(requests))

        def on_finished() -> None:
            progress.advance(task)

        if config is None:
            from tiering.replay.counting import count_hits  # noqa: PLC0415

            report = count_hits(
                requests,
                policy=policy or "lru",
                primary_rows=primary_rows or 1,
                secondary_rows=num_secondary_rows,
                forward_touch=forward_touch,
                concurrency=concurrency,
                on_finished=on_finished,
            )
        else:
            from tiering.replay.with_bytes import replay_bytes  # noqa: PLC0415  (torch)

            settings = load_config(config)
            if policy is not None:
                settings = settings.model_copy(update={"eviction_policy": policy})
            report = replay_bytes(
                requests,
                settings,
                num_ranks=ranks,
                row_bytes=row_bytes,
                num_groups=groups,
                primary_rows=primary_rows,
                concurrency=concurrency,
                on_finished=on_finished,
            )
    _print(report, output)
    if not report.is_good:
        raise typer.Exit(1)


def _are_given(context: typer.Context, *options: str) -> bool:
    sources = (context.get_parameter_source(option) for option in options)
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)


def _requests(trace: Path | None, generate: int, seed: int, limit: int | None) -> list[TraceRequest]:
    if trace is None:
        return list(itertools.islice(generate_trace(seed), min(generate, limit or generate)))
    requests = list(itertools.islice(read_trace(trace), limit))
    if not requests:
        raise TraceError(f"{trace}: holds no requests")
    return requests


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _print(report: ReplayReport, output: Format) -> None:
    if output is Format.JSON:
        print_json(report.as_dict())
    else:
        Console(markup=False, highlight=False).print(report.render())
