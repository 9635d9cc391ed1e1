"""Reads a configuration from a YAML file or a mapping, with overrides from the environment.

``TIERING__secondary_tier_configs__0__capacity=1GiB`` sets one value; the parts between double underscores are keys and
list indices, and the value is YAML. Everything that is wrong is reported in one `ConfigError`, each problem with its
place; nothing outside this process is created or changed by reading.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tiering.config import AvailablePlugins, TieringConfig
from tiering.config_problems import KeyPath, Problem, config_error, explain
from tiering.config_yaml import LocatedData, read_yaml
from tiering.errors import ConfigError
from tiering.registry import installed_tiers, resolve_policy, resolve_tier

__all__ = ["load_config", "parse_config"]

_PREFIX = "TIERING__"
_MOST_BYTES = 2**20

_PLUGINS = AvailablePlugins(
    resolve_tier=resolve_tier,
    resolve_policy=resolve_policy,
    tier_types=lambda: sorted({plugin.name for plugin in installed_tiers()}),
)


def load_config(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> TieringConfig:
    """Read the YAML file at ``path``.

    Args:
        path: the file.
        environ: where overrides come from; default: the environment of this process.

    Raises:
        ConfigError: the file cannot be read, or what it says with its overrides cannot be used.
    """
    source = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"{source}: is no configuration: it is larger than {_MOST_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: is not UTF-8 text: {error.reason} at byte {error.start}") from error
    settings = read_yaml(text, source)
    if settings.value is None and not settings.problems:
        settings.problems.append(Problem((), "is empty; at least cpu_bytes_to_use is required"))
    return _validated(settings, environ)


def parse_config(
    settings: Mapping[str, Any], source: str = "configuration", environ: Mapping[str, str] | None = None
) -> TieringConfig:
    """Read a mapping such as an engine's extra configuration.

    Args:
        settings: plain data as JSON or YAML would give, or paths as `os.PathLike`; it is not changed or kept.
        source: what messages call it.
        environ: where overrides come from; default: the environment of this process.

    Raises:
        ConfigError: the settings with their overrides cannot be used.
    """
    try:
        text = json.dumps(settings, default=os.fspath, ensure_ascii=False)
        text.encode()  # half of a surrogate pair is no character
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{source}: must be plain data (mappings, lists, strings, numbers): {error}") from error
    return _validated(LocatedData(plain, {(): source}), environ)


def _validated(settings: LocatedData, environ: Mapping[str, str] | None) -> TieringConfig:
    if isinstance(settings.value, dict):
        _apply_overrides(settings, os.environ if environ is None else environ)
        try:
            config = TieringConfig.model_validate_json(json.dumps(settings.value), strict=True, context=_PLUGINS)
        except ValidationError as error:
            # A value that could not be read is None here, which makes those around it wrong, too.
            reported = {problem.path[:depth] for problem in settings.problems for depth in range(len(problem.path) + 1)}
            found = explain(error, settings.value, _PLUGINS)
            settings.problems += [problem for problem in found if problem.path not in reported]
    elif not settings.problems:
        text = "must be a mapping of settings, such as cpu_bytes_to_use: 8GiB"
        settings.problems.append(Problem((), text, settings.value))
    if settings.problems:
        raise config_error(settings.problems, settings.places)
    return config


def _apply_overrides(settings: LocatedData, environ: Mapping[str, str]) -> None:
    overrides = {name: name.removeprefix(_PREFIX).split("__") for name in environ if name.startswith(_PREFIX)}
    # Shorter first, so that list indices are set in numeric order and a list can be made from nothing.
    for name, keys in sorted(overrides.items(), key=lambda item: [(len(key), key) for key in item[1]]):
        override = read_yaml(environ[name], f"environment variable {name}", is_file=False)
        path = _set(settings.value, keys, override.value)
        whole = tuple(keys) if path is None else path
        settings.problems += [replace(problem, path=whole + problem.path) for problem in override.problems]
        if path is None:
            text = "leads to no setting; allowed: keys of mappings, and list indices up to the length of the list"
            settings.problems.append(Problem((), text, place=override.places[()]))
            continue
        inside = [known for known in settings.places if known[: len(path)] == path]
        for known in inside:
            del settings.places[known]
        settings.places |= {(*path, *inner): place for inner, place in override.places.items()}


def _set(container: Any, keys: Sequence[str], value: object) -> KeyPath | None:
    """Put ``value`` where ``keys`` lead, making mappings and lists on the way; None if they lead nowhere."""
    path: list[str | int] = []
    for depth, key in enumerate(keys):
        step: str | int = key
        if isinstance(container, list) and key.isdecimal() and int(key) <= len(container):
            step = int(key)
            if step == len(container):
                container.append(None)
        elif isinstance(container, dict):
            container.setdefault(key, None)
        else:
            return None
        path.append(step)
        if depth == len(keys) - 1:
            container[step] = value
        elif container[step] is None:
            container[step] = [] if keys[depth + 1].isdecimal() else {}
        container = container[step]
    return tuple(path)
