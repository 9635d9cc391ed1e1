"""The ``tiering`` command: puts the sub-commands together and turns errors into exit codes.

Exit codes: 0 all is well, 1 a problem was found, 2 wrong usage or configuration.
"""

from __future__ import annotations

import sys
from importlib import metadata
from typing import Annotated

import typer

from tiering.cli import config, gc, tiers
from tiering.cli.replay import replay
from tiering.errors import ConfigError, PluginError, TieringError

__all__ = ["app", "main"]

app = typer.Typer(
    name="tiering",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Multi-tier KV-cache offloading: configurations, tiers and maintenance.",
)
app.add_typer(config.app, name="config")
app.add_typer(tiers.app, name="tiers")
app.add_typer(gc.app, name="gc")
app.command()(replay)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tiering {metadata.version('kv-tiering')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    return


def main() -> None:
    """Run the command line and exit; errors of ours end in one message on standard error, without a traceback."""
    try:
        app()
    except TieringError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError | PluginError) else 1)
