"""``tiering gc``: remove what nobody needs any more."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tiering.cli.gc_objects import collect_objects
from tiering.cli.output import Format, FormatOption, print_json
from tiering.region import reclaim_dead_regions

__all__ = ["app", "collect_regions"]

app = typer.Typer(no_args_is_help=True, help="Remove what nobody needs any more.")
app.command("objects")(collect_objects)


@app.command("regions")
def collect_regions(
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
