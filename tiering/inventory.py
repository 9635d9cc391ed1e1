"""What maintenance asks of a tier whose chunks outlive its engines: what is in its store, and to remove some of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

__all__ = ["HasInventory", "StoredKind", "StoredObject"]


class StoredKind(StrEnum):
    """What an object in a store is."""

    CHUNK = "chunk"
    DESCRIPTION = "description"
    """It says in words what a namespace is."""
    LEFTOVER = "leftover"
    """A write that has not ended; its writer may be at it, or dead."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object that this project has written, of any namespace.

    Attributes:
        kind: what it is.
        namespace: fingerprint of its namespace, in hex.
        name: what the store calls it.
        num_bytes: its length; 0 where the store does not tell.
        written_at: seconds since the epoch, by the store's clock; infinity where the store does not tell.
        upload_id: of an unfinished upload, which is no object yet; else empty.
    """

    kind: StoredKind
    namespace: str
    name: str
    num_bytes: int
    written_at: float
    upload_id: str = ""


@runtime_checkable
class HasInventory(Protocol):
    """A tier that can say what lies in its store. Both methods work without `Tier.open`, beside living engines."""

    def inventory(self) -> AsyncIterator[StoredObject]:
        """Iterate over all objects of all namespaces in the tier's place. Nothing that somebody else may have put
        there is among them, and nothing outside of the place is looked at.

        Raises:
            TierError: the store cannot be listed; the iteration ends here.
        """
        ...

    async def remove(self, objects: Sequence[StoredObject]) -> list[bool]:
        """Remove objects that `inventory` has returned; True for each that is gone. Errors of single ones are logged.

        Raises:
            TierError: what the first one met, if all met one.
        """
        ...
