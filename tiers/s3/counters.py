"""What an object tier counts."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ObjectCounters"]


@dataclass(slots=True)
class ObjectCounters:
    """Numbers since construction; they only grow. Changed on the event loop thread alone.

    Attributes:
        stored, loaded: chunks written, and read and verified.
        already_stored: chunks that another engine had written before us.
        declined: chunks not stored because their key is too long.
        questions: existence checks sent; ``remembered`` ones were answered without.
        vanished: loads that found nothing where something had been.
        corrupt: loads that found something else than what had been stored.
        deleted: corrupt objects removed.
        lookup_errors, store_errors, load_errors: chunks that met an error; each of them is a miss, or not stored.
        retries: further tries after failures that may pass.
        renewals: times that new credentials were asked for.
    """

    stored: int = 0
    loaded: int = 0
    already_stored: int = 0
    declined: int = 0
    questions: int = 0
    remembered: int = 0
    vanished: int = 0
    corrupt: int = 0
    deleted: int = 0
    lookup_errors: int = 0
    store_errors: int = 0
    load_errors: int = 0
    retries: int = 0
    renewals: int = 0
