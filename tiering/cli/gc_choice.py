"""Which objects of a store ``tiering gc`` removes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf

from tiering.inventory import StoredKind, StoredObject

__all__ = ["Bounds", "choose"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may stay. Ages are in seconds.

    Attributes:
        older_than: chunks of this age are removed; infinity for none.
        max_bytes: what the remaining chunks may take together, or None.
        leftovers_older_than: writes that have not ended are removed at this age.
        namespaces: fingerprints in hex of those concerned; empty for all.
    """

    older_than: float = inf
    max_bytes: int | None = None
    leftovers_older_than: float = inf
    namespaces: frozenset[str] = frozenset()


def choose(found: Iterable[StoredObject], bounds: Bounds, now: float) -> list[StoredObject]:
    """Return what to remove of ``found``, oldest first.

    Chunks go by age, and then the oldest ones until the rest fits. A description goes with the last object of its
    namespace, once it is old itself: an engine may have begun with it a moment ago.

    Args:
        found: everything that lies there.
        bounds: what may stay.
        now: seconds since the epoch.
    """
    concerned = [stored for stored in found if not bounds.namespaces or stored.namespace in bounds.namespaces]
    concerned.sort(key=lambda stored: (stored.written_at, stored.name))
    chunks = [stored for stored in concerned if stored.kind is StoredKind.CHUNK]
    excess = 0 if bounds.max_bytes is None else sum(stored.num_bytes for stored in chunks) - bounds.max_bytes
    chosen = []
    for stored in chunks:
        if not (excess > 0 or now - stored.written_at >= bounds.older_than):
            break  # all that follow are younger
        chosen.append(stored)
        excess -= stored.num_bytes
    chosen += _old(concerned, StoredKind.LEFTOVER, now - bounds.leftovers_older_than)
    left = Counter(stored.namespace for stored in concerned if stored.kind is not StoredKind.DESCRIPTION)
    left.subtract(stored.namespace for stored in chosen)
    descriptions = _old(concerned, StoredKind.DESCRIPTION, now - min(bounds.older_than, bounds.leftovers_older_than))
    return chosen + [stored for stored in descriptions if left[stored.namespace] == 0]


def _old(objects: Collection[StoredObject], kind: StoredKind, latest: float) -> list[StoredObject]:
    return [stored for stored in objects if stored.kind is kind and stored.written_at <= latest]
