"""Sizes and durations as people write them in a configuration: ``8GiB``, ``30s``.

Only spellings with one meaning are accepted: sizes are whole bytes or carry a binary suffix, so that nobody gets 7 %
less memory than he read into "10GB".
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

__all__ = ["ByteSize", "Duration", "format_bytes", "parse_bytes", "parse_duration"]

_SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DURATION_UNITS = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_NUMBER = re.compile(r"([0-9]{1,300}(?:\.[0-9]{1,300})?)\s*([A-Za-z]*)")
_MOST_BYTES = 2**63 - 1
"""What a file offset holds."""
_MOST_SECONDS = 100 * 365 * 86400


def parse_bytes(value: object) -> int:
    """Return the number of bytes that ``value`` means.

    Raises:
        ValueError: it is not a whole number from 0 to 2**63 - 1, alone or with B, KiB, MiB, GiB or TiB behind it.
    """
    allowed = "a whole number of bytes or a number with B, KiB, MiB, GiB or TiB, such as 8GiB"
    if isinstance(value, int) and not isinstance(value, bool):
        size = Fraction(value)
    else:
        match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"must be {allowed}")
        number, unit = match.groups()
        if unit and unit not in _SIZE_UNITS:
            hint = {name[0].lower(): name for name in _SIZE_UNITS}.get(unit[0].lower())
            near = f", did you mean {number}{hint}" if hint and unit[1:].lower() in {"", "b", "i", "ib"} else ""
            raise ValueError(f"has the unknown unit {unit!r}{near}; allowed: {allowed}")
        size = Fraction(number) * _SIZE_UNITS[unit or "B"]
    if size < 0:
        raise ValueError(f"must not be negative; allowed: {allowed}")
    if size > _MOST_BYTES:
        raise ValueError(f"is 8388608TiB or more; allowed: {allowed}")
    if size.denominator != 1:
        raise ValueError(f"is not a whole number of bytes; allowed: {allowed}")
    return int(size)


def parse_duration(value: object) -> float:
    """Return the number of seconds that ``value`` means.

    Raises:
        ValueError: it is not a number of seconds from 0 to 100 years, alone or with ms, s, m, h or d behind it.
    """
    allowed = "a number of seconds or a number with ms, s, m, h or d, such as 30s"
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None or (match[2] and match[2] not in _DURATION_UNITS):
            raise ValueError(f"must be {allowed}")
        seconds = float(Fraction(match[1]) * _DURATION_UNITS[match[2] or "s"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"must be finite and not negative; allowed: {allowed}")
    if seconds > _MOST_SECONDS:
        raise ValueError(f"is more than 36500d; allowed: {allowed}")
    return float(seconds)


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
    return f"{Decimal(repr(seconds)):f}".removesuffix(".0") + "s"


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
