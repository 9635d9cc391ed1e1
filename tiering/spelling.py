"""The nearest allowed spelling of a word that is not allowed, for error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """Return ``, did you mean 'lru'`` where ``allowed`` has something like ``word`` (in any case), else ``""``."""
    spellings = {name.lower(): name for name in allowed}
    nearest = get_close_matches(word.lower(), spellings, n=1)
    return f", did you mean {spellings[nearest[0]]!r}" if nearest else ""
