"""``tiering config``: check, show and describe configurations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from tiering.cli.output import Format, FormatOption, print_json
from tiering.config import TIER_LIST_KEYS, TieringConfig
from tiering.config_file import load_config
from tiering.errors import PluginError
from tiering.registry import installed_tiers, resolve_tier

__all__ = ["app", "schema", "show", "validate"]

app = typer.Typer(no_args_is_help=True, help="Check, show and describe configurations.")

_FileArgument = Annotated[
    Path, typer.Argument(help="YAML file; TIERING__key__key=value in the environment overrides it")
]


@app.command()
def validate(file: _FileArgument, output: FormatOption = Format.TEXT) -> None:
    """Check a file and the tiers it names; nothing is created."""
    config = load_config(file)
    if output is Format.JSON:
        print_json({"file": str(file), "valid": True, "tiers": [tier.name for tier in config.secondary_tier_configs]})
    else:
        typer.echo(f"{file}: valid")


@app.command()
def show(file: _FileArgument, output: FormatOption = Format.TEXT) -> None:
    """Print the effective configuration: the file, the overrides and every default."""
    settings = load_config(file).model_dump(mode="json")
    if output is Format.JSON:
        print_json(settings)
    else:
        typer.echo(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True), nl=False)


@app.command()
def schema() -> None:
    """Print the JSON schema of a configuration, with every installed tier; editors complete and check with it."""
    print_json(_schema())


def _schema() -> dict[str, Any]:
    models: dict[str, type[BaseModel]] = {}
    for name in sorted({plugin.name for plugin in installed_tiers()}):
        try:
            models[name] = resolve_tier(name).config_type
        except PluginError as error:
            print(f"left out: {error}", file=sys.stderr)
    top = TieringConfig.model_json_schema()
    references, definitions = models_json_schema([(model, "validation") for model in models.values()])
    top["$defs"] = top.get("$defs", {}) | definitions.get("$defs", {})
    top["properties"][TIER_LIST_KEYS[0]]["items"] = {
        "anyOf": [
            {"properties": {"type": {"const": name}}, **references[model, "validation"]}
            for name, model in models.items()
        ]
    }
    return top
