"""The flags that tiers answer with, one per chunk: taken for what they are only if they are that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["checked_flags"]


def checked_flags(answer: Iterable[Any], num_chunks: int) -> list[bool]:
    """Return the flags of an answer of a tier: ``num_chunks`` values that equal True or False.

    Whatever else could pass for true, such as the error that `asyncio.gather` returns of a call that has failed, would
    make bytes readable that nobody has written.

    Raises:
        ValueError: there are more or fewer, or something else is among them.
        Exception: the answer cannot be iterated, or what that raises.
    """
    flags = list(answer)
    if not len(flags) == num_chunks == flags.count(True) + flags.count(False):
        raise ValueError(f"{num_chunks} flags expected for as many chunks, not {flags!r:.100}")
    return flags
