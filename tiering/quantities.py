"""Sizes and durations as people write them in a configuration: ``8GiB``, ``30s``.

Only spellings with one meaning are accepted: sizes are whole bytes or carry a binary suffix, so that nobody gets 7 %
less memory than he read into "10GB".
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

__all__ = ["ByteSize", "Duration", "format_bytes", "parse_bytes", "parse_duration"]

_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_bytes(value: object) -> int:
    """Return the number of bytes that ``value`` means.

    Raises:
        ValueError: it is not a non-negative whole number, alone or with B, KiB, MiB, GiB or TiB behind it.
    """
    allowed = "a whole number of bytes or a number with B, KiB, MiB, GiB or TiB, such as 8GiB"
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"must not be negative; allowed: {allowed}")
        return value
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"must be {allowed}")
    number, unit = match.groups()
    if unit and unit not in _SIZE_UNITS:
        near = {name.lower(): name for name in _SIZE_UNITS} | {
            "kb": "KiB",
            "mb": "MiB",
            "gb": "GiB",
            "tb": "TiB",
        }
        hint = near.get(unit.lower())
        raise ValueError(
            f"has the unknown unit {unit!r}"
            + (f", did you mean {number}{hint}" if hint else "")
            + f"; allowed: {allowed}"
        )
    size = float(number) * _SIZE_UNITS[unit or "B"]
    if size != int(size):
        raise ValueError(f"is not a whole number of bytes; allowed: {allowed}")
    return int(size)


def parse_duration(value: object) -> float:
    """Return the number of seconds that ``value`` means.

    Raises:
        ValueError: it is not a non-negative number of seconds, alone or with ms, s, m, h or d behind it.
    """
    allowed = "a number of seconds or a number with ms, s, m, h or d, such as 30s"
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < float("inf"):
            raise ValueError(f"must be finite and not negative; allowed: {allowed}")
        return float(value)
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (match[2] and match[2] not in _DURATION_UNITS):
        raise ValueError(f"must be {allowed}")
    return float(match[1]) * _DURATION_UNITS[match[2] or "s"]


def format_bytes(num_bytes: float) -> str:
    """Return ``num_bytes`` with the largest binary unit that leaves at least one before the point: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _serialize_bytes(num_bytes: int) -> int | str:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % _SIZE_UNITS[unit] == 0:
            return f"{num_bytes // _SIZE_UNITS[unit]}{unit}"
    return num_bytes


def _serialize_seconds(seconds: float) -> str:
    return f"{seconds:g}s"


ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(_serialize_bytes),
    Field(json_schema_extra={"type": ["integer", "string"], "examples": ["8GiB", 1073741824]}),
]
"""A number of bytes; ``8GiB`` or an integer."""

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(_serialize_seconds),
    Field(json_schema_extra={"type": ["number", "string"], "examples": ["30s", 0.5]}),
]
"""A number of seconds; ``30s`` or a number."""
