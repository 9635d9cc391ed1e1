"""What may be shown of a configuration: everything but secrets.

Models mask their own secrets. This is for what has not become a model: defaults of tiers, and wrong values in messages,
where a misspelt key may hide a password. It goes by names, so it hides rather too much than too little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["MASK", "redacted"]

MASK = "**********"

_WORDS = "secr|token|passw|pwd|auth|credential|sas|signature|access_?key|api_?key"
_SECRET_NAME = re.compile(rf"{_WORDS}|(^|_)(key|sig)($|_)", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(rf"((?:{_WORDS}|\bsig)\w*\s*[=:]\s*)\S+", re.IGNORECASE)
_FREE_FORM = re.compile(r"options|kwargs|headers", re.IGNORECASE)
_USER_IN_URL = re.compile(r"(?<=://)\S+@")
_QUERY_IN_URL = re.compile(r"(://[^\s?#]*[?#])\S+")


def redacted(value: Any, path: Sequence[str | int] = ()) -> Any:
    """Return ``value``, found at ``path``, with everything masked that may be a secret.

    That is what stands under a key that sounds like a secret, any text in free-form options of a client library, the
    user and the query of a URL, and what a text assigns to such a key (``token=...``).
    """
    names = [name for name in path if isinstance(name, str)]
    if value is None or isinstance(value, bool):
        return value
    if any(_SECRET_NAME.search(name) for name in names) and not isinstance(value, Mapping):
        return MASK
    if isinstance(value, Mapping):
        return {key: redacted(inner, (*path, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(inner, (*path, place)) for place, inner in enumerate(value)]
    if isinstance(value, str):
        if any(_FREE_FORM.search(name) for name in names):
            return MASK
        value = _QUERY_IN_URL.sub(rf"\1{MASK}", _USER_IN_URL.sub(f"{MASK}@", value))
        return _SECRET_IN_TEXT.sub(rf"\1{MASK}", value)
    return value
