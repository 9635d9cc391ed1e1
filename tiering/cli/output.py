"""How commands print what they found: as text for people or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

__all__ = ["Format", "FormatOption", "print_json", "print_table"]


class Format(StrEnum):
    """What ``--format`` may be."""

    TEXT = "text"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="text for people, json for programs")]


def print_json(value: object) -> None:
    """Print ``value`` on standard output as one JSON document."""
    typer.echo(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    """Print ``rows`` on standard output, one line each; cells that do not fit are folded."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(row[column] for column in columns))
    Console(markup=False, highlight=False).print(table)
