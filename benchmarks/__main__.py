"""``python -m benchmarks [name ...]``: run benchmarks and print their tables."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import Comparison, Scale, WrongResultError
from tiering.errors import TieringError

_NAMES = ("manager", "region", "device", "device_path", "disk", "object_store", "isolation")


def run(
    names: Annotated[list[str] | None, typer.Argument(help=f"of {', '.join(_NAMES)}; default: all")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="little work: shows that all runs, but no good numbers")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results to this file, too")] = None,
    directory: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="where the disk tier is measured; default: a temporary one"),
    ] = None,
) -> None:
    """Measure this project against the limits of this machine, in one run."""
    unknown = sorted(set(names or ()) - set(_NAMES))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}; allowed: {', '.join(_NAMES)}")
    directory = directory or Path(tempfile.gettempdir())
    scale = Scale(7, (10_000, 100_000, 1_000_000), 256 * 2**20, directory)
    if quick:
        scale = Scale(2, (10_000,), 32 * 2**20, directory)
    results: dict[str, list[Comparison]] = {}
    for name in names or _NAMES:
        # One at a time: only some of them need torch.
        results[name] = list(importlib.import_module(f"benchmarks.{name}").measure(scale))
        _print(name, results[name])
    if json_file is not None:
        json_file.write_text(json.dumps(_as_json(results), indent=2) + "\n")


def _as_json(results: dict[str, list[Comparison]]) -> dict[str, object]:
    machine = {"system": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    return {"machine": machine, "results": {name: [asdict(line) for line in lines] for name, lines in results.items()}}


def _print(name: str, lines: list[Comparison]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(name, no_wrap=True)
    for column in ("ours", "other", "", "times as long", "CPU s/GB"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("the other is", no_wrap=True)
    for line in lines:
        table.add_row(
            line.case,
            _number(line.ours),
            _number(line.others),
            line.unit,
            f"{line.times_as_long:.2f}",
            "" if line.cpu_seconds_per_gb is None else f"{line.cpu_seconds_per_gb:.3f}",
            line.other,
        )
    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    console.print()


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


if __name__ == "__main__":
    try:
        typer.run(run)
    except (TieringError, WrongResultError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
