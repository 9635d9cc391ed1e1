"""The errors this project raises, each saying whether another try can help.

A miss is a value, never an error. A failing tier reaches its users as misses and counters; the classes below are for
wrong input, for construction, and for tier authors who want to say what kind of failure they met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiering.keys import OffloadKey

__all__ = [
    "ConfigError",
    "KeysNotReadyError",
    "PermanentTierError",
    "PluginError",
    "RegionError",
    "TemporaryTierError",
    "TierError",
    "TieringError",
    "TraceError",
    "text_of",
]


class TieringError(Exception):
    """Any error this project raises on purpose."""


class ConfigError(TieringError, ValueError):
    """The configuration cannot be used; the message names the place, the value and what is allowed."""


class PluginError(TieringError):
    """A tier or policy named in the configuration cannot be found, loaded or trusted to fit the contract."""


class RegionError(TieringError, OSError):
    """The shared region cannot be created or joined; nothing of it is left behind by this process."""


class TraceError(TieringError, ValueError):
    """A request trace cannot be read; the message names file and line."""


class KeysNotReadyError(TieringError, LookupError):
    """`prepare_load` was asked for keys that are not readable now; no row was pinned.

    Attributes:
        keys: the keys that are absent or still being written, in the order asked.
    """

    def __init__(self, keys: Sequence[OffloadKey]) -> None:
        self.keys = tuple(keys)
        shown = ", ".join(key.hex() for key in self.keys[:3])
        more = f" and {len(self.keys) - 3} more" if len(self.keys) > 3 else ""
        super().__init__(f"{len(self.keys)} of the keys to load are not ready: {shown}{more}")


class TierError(TieringError):
    """A tier could not do what was asked of it; nothing of the batch counts.

    Attributes:
        temporary: whether the same call may succeed later.
    """

    temporary: bool = False


class TemporaryTierError(TierError):
    """The tier failed in a way that may pass: a timeout, a throttle, a full queue."""

    temporary = True


class PermanentTierError(TierError):
    """The tier failed in a way that another try will not mend: refused credentials, a read-only disk."""


def text_of(error: BaseException) -> str:
    """Return ``Type: text`` of any error, also of one that raises when it is asked for its text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # libraries have such errors, and a job must end with them, too
        return type(error).__name__
