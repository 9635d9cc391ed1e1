"""The ``tiering`` command: puts the sub-commands together and turns errors into exit codes.

Exit codes: 0 all is well, 1 a problem was found, 2 wrong usage or configuration.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from types import FrameType
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
    context_settings={"help_option_names": ["-h", "--help"]},
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
    """Run the command line and exit; errors of ours and of the system end in one message on standard error.

    SIGTERM and SIGHUP end a command as Ctrl-C does: what it has begun is taken back.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show ends no command
    try:
        with _orderly_end():
            app()
    except (TieringError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ConfigError | PluginError) else 1)
    except MemoryError:
        print("error: this takes more memory than there is", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _orderly_end() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    taken = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)
