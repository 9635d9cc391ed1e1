"""What one secondary tier has done so far, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["TierStats"]


@dataclass(slots=True)
class TierStats:
    """Counters of one tier, as the manager sees it. Written on the scheduler thread only.

    Attributes:
        stored_chunks, loaded_chunks: chunks really moved.
        stored_bytes, loaded_bytes: their rows' bytes.
        store_failures, load_failures: chunks that a store or load was tried for in vain.
        lookup_failures: keys taken as absent because the tier raised.
        lookup_timeouts, load_timeouts, store_timeouts: chunks that the tier was too late for.
        stores_shed: chunks not handed over, because too many were on their way or the breaker was not closed.
        corrupt: chunks that the tier dropped because their bytes did not verify.
        faults: calls of the tier that broke its contract or raised.
        store_seconds, load_seconds: time during which at least one store, or load, was under way.
        process_ends: how often its process, if it has one of its own, has ended by itself.
        jobs_in_flight: jobs whose result has not come in yet.
    """

    stored_chunks: int = 0
    stored_bytes: int = 0
    store_failures: int = 0
    store_seconds: float = 0.0
    loaded_chunks: int = 0
    loaded_bytes: int = 0
    load_failures: int = 0
    load_seconds: float = 0.0
    lookup_failures: int = 0
    lookup_timeouts: int = 0
    load_timeouts: int = 0
    store_timeouts: int = 0
    stores_shed: int = 0
    corrupt: int = 0
    faults: int = 0
    process_ends: int = 0
    jobs_in_flight: int = 0

    def as_dict(self) -> Mapping[str, Any]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(field.name for field in fields(TierStats))
