"""What is wrong with a configuration, in sentences: where, which value, and what is allowed instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tiering.config import TIER_LIST_KEYS, AvailablePlugins, TieringConfig
from tiering.errors import ConfigError, PluginError
from tiering.redaction import redacted
from tiering.spelling import did_you_mean

__all__ = ["ABSENT", "KeyPath", "Problem", "config_error", "explain"]

KeyPath = tuple[str | int, ...]
"""Keys and list indices that lead to a value, from the top."""

ABSENT: Final = object()
"""Stands for the value of a problem that is not about one value."""

_SHOWN_CHARACTERS = 80

_SENTENCES = {
    "missing": "required, but not set",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "set_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a string",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        path: where in the settings; empty for the whole of them.
        text: what is wrong and what is allowed.
        value: the value that is wrong, or `ABSENT`.
        place: file and line, where ``path`` does not lead there.
    """

    path: KeyPath
    text: str
    value: object = ABSENT
    place: str | None = None


def explain(error: ValidationError, settings: Mapping[str, Any], plugins: AvailablePlugins) -> list[Problem]:
    """Turn pydantic's findings about ``settings`` into problems, each once and in the order found."""
    problems: dict[tuple[KeyPath, str], Problem] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and details["ctx"]["actual_length"] < len(details["input"]):
            continue  # only the items that are right were counted; each wrong one is a problem of its own
        path = _path_in(settings, details)
        value = ABSENT if details["type"] in {"missing", "json_invalid"} else details["input"]
        problem = Problem(path, _sentence(details, path, settings, plugins), value)
        problems.setdefault((path, problem.text), problem)
    return list(problems.values())


def config_error(problems: Sequence[Problem], places: Mapping[KeyPath, str]) -> ConfigError:
    """Return one error with a line for each problem, ``place: path: value: text``, in the order of the places.

    ``places`` says where values stand, at least for the empty path; a value that is not in it stands where the
    innermost value around it does.
    """
    lines = []
    for problem in problems:
        path = problem.path
        while path not in places and path:
            path = path[:-1]
        parts = [problem.place or places[path]]
        parts += [_dotted(problem.path)] if problem.path else []
        parts += [_shown(redacted(problem.value, problem.path))] if problem.value is not ABSENT else []
        lines.append(": ".join([*parts, problem.text]))
    lines.sort(key=_file_and_line)
    if len(lines) == 1:
        return ConfigError(lines[0])
    return ConfigError("\n  ".join([f"{len(lines)} problems in the configuration:", *lines]))


def _file_and_line(line: str) -> tuple[str, int]:
    place, _, number = line.partition(": ")[0].rpartition(":")
    return (place, int(number)) if number.isdigit() else ("", 0)


def _path_in(settings: Mapping[str, Any], details: ErrorDetails) -> KeyPath:
    """Return the path by which the user would find the value.

    That leaves out what pydantic adds for unions, and leads into ``defaults`` for a value that came from there.
    """
    path = _followed(settings, details["loc"])
    if len(path) < len(details["loc"]) and path[:1] and path[0] in TIER_LIST_KEYS:
        in_defaults = _followed(settings.get("defaults"), details["loc"][2:])
        if len(in_defaults) > max(len(path) - 2, 0):
            path = ("defaults", *in_defaults)
    return (*path, details["loc"][-1]) if details["type"] == "missing" else path


def _followed(value: Any, location: KeyPath) -> KeyPath:
    """Return the part of ``location`` that leads somewhere in ``value``."""
    for depth, key in enumerate(location):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return location[:depth]
    return location


def _sentence(details: ErrorDetails, path: KeyPath, settings: Mapping[str, Any], plugins: AvailablePlugins) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind == "extra_forbidden":
        key = str(path[-1])
        if key in TIER_LIST_KEYS and len(path) == 1:
            return f"means the same as {TIER_LIST_KEYS[0]!r}, which is set too; keep one of them"
        allowed = _allowed_keys(details["loc"][:-1] if path[0] == "defaults" else path[:-1], settings, plugins)
        return f"unknown key{did_you_mean(key, allowed)}" + (f"; allowed: {', '.join(allowed)}" if allowed else "")
    if kind == "value_error":
        return str(context["error"])
    if kind in {"literal_error", "enum"} and isinstance(details["input"], str):
        hint = did_you_mean(details["input"], re.findall(r"'([^']*)'", context["expected"]))
        return f"must be {context['expected']}{hint}"
    return _SENTENCES.get(kind) or re.sub(r"^\w+ should ", "must ", details["msg"])


def _allowed_keys(path: KeyPath, settings: Mapping[str, Any], plugins: AvailablePlugins) -> list[str]:
    """Return the keys that the mapping at ``path`` may have, or none where that cannot be told."""
    model: type[BaseModel] | None = TieringConfig
    if path and path[0] in TIER_LIST_KEYS:
        try:
            model = plugins.resolve_tier(settings[str(path[0])][path[1]]["type"]).config_type
        except PluginError:
            return []
        path = path[2:]
    for key in path:
        if model and isinstance(key, str):
            model = _model_in(model.model_fields[key].annotation) if key in model.model_fields else None
    return [info.alias or name for name, info in model.model_fields.items()] if model else []


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model in a type such as ``RetryConfig | None`` or ``tuple[RetryConfig, ...]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(_model_in, get_args(annotation)) if model), None)


def _dotted(path: KeyPath) -> str:
    steps = (f"[{key}]" if isinstance(key, int) else f".{key if key.isprintable() else repr(key)}" for key in path)
    return "".join(steps).removeprefix(".")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."
