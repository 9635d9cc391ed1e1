"""``tiering tiers``: what is installed."""

from __future__ import annotations

from dataclasses import asdict

import typer

from tiering.cli.output import Format, FormatOption, print_json, print_table
from tiering.registry import installed_tiers

__all__ = ["app", "list_tiers"]

app = typer.Typer(no_args_is_help=True, help="See which tiers are installed.")


@app.callback()
def _group() -> None:
    # A group with one command would otherwise be that command.
    return


@app.command("list")
def list_tiers(output: FormatOption = Format.TEXT) -> None:
    """List the installed tiers without importing them."""
    tiers = [asdict(plugin) for plugin in installed_tiers()]
    if output is Format.JSON:
        print_json(tiers)
    else:
        print_table(["name", "distribution", "version", "module"], tiers)
