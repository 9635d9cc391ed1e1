"""``tiering gc``: remove what killed engines left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiering.cli.output import Format, FormatOption, print_json
from tiering.region import reclaim_dead_regions

__all__ = ["collect_garbage"]


def collect_garbage(
    directory: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="region.directory of the engines")
    ] = Path("/dev/shm"),
    output: FormatOption = Format.TEXT,
) -> None:
    """Remove shared regions that no living process holds; those of living engines are left alone."""
    removed = [str(path) for path in reclaim_dead_regions(directory)]
    if output is Format.JSON:
        print_json({"removed": removed})
        return
    for path in removed:
        typer.echo(f"removed {path}")
    typer.echo(f"{len(removed)} dead regions in {directory}")
