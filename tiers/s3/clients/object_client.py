"""The seam to a client library: what an object tier asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tiers.s3.landing import Landing

__all__ = ["ListedObject", "ObjectClient"]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One line of a listing.

    Attributes:
        name: of the object.
        num_bytes: its length; 0 for an unfinished upload.
        written_at: seconds since the epoch; infinity where the store does not tell.
        upload_id: of an unfinished upload; empty for an object.
    """

    name: str
    num_bytes: int
    written_at: float
    upload_id: str = ""


class ObjectClient(ABC):
    """A store of named objects, as one client library shows it.

    All coroutines run on the loop that made the client, many at a time. They raise the errors of `tiers.s3.errors`.
    ``deadline`` is in the loop's time: an operation ends by then, with a TemporaryTierError. An operation that writes
    into a row, or reads from one, has ended when its coroutine ends, also if it fails; only private memory is ever left
    to an operation that was given up.

    Attributes:
        can_put_if_absent: whether `put` knows how to ask for it; the service may still ignore it.
    """

    can_put_if_absent: bool = False

    @abstractmethod
    def describe(self) -> str:
        """Name the library with its version, and how often it copies a row's bytes."""

    @abstractmethod
    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        """Read a whole object, in one request, into ``landing``, which may have to be settled afterwards.

        Raises:
            ObjectAbsentError: there is none.
            ObjectDamagedError: it does not fit into ``landing``.
            TierError: anything else. What ``landing`` holds then is of no use.
        """

    @abstractmethod
    def pack(self, header: bytes, row: memoryview) -> Any:
        """Make the body that `put` takes. Runs on a worker thread; the row is not written to until `put` has ended."""

    @abstractmethod
    async def put(self, name: str, body: Any, deadline: float, *, only_if_absent: bool) -> None:
        """Write a whole object, in one request; nobody ever sees a part of it.

        Args:
            name: the object.
            body: what `pack` returned, or bytes.
            deadline: see the class.
            only_if_absent: do not replace an object, where service and library can tell.

        Raises:
            ObjectExistsError: there is one; it was left as it is.
            TierError: anything else. The object may have been written.
        """

    @abstractmethod
    async def head(self, name: str) -> int:
        """Return an object's length. May be cancelled at any time.

        Raises:
            ObjectAbsentError: there is none.
            TierError: anything else.
        """

    @abstractmethod
    async def delete(self, name: str) -> None:
        """Remove an object, if there is one. May be cancelled at any time.

        Raises:
            TierError: it may still be there.
        """

    @abstractmethod
    def list(self, directory: str) -> AsyncIterator[ListedObject]:
        """Iterate over all objects whose name begins with ``directory``, which ends with a slash or is empty.

        Raises:
            TierError: the listing ends here.
        """

    async def list_uploads(self, directory: str) -> AsyncIterator[ListedObject]:
        """Iterate over uploads in several parts below ``directory`` that were begun and have not ended, as `list` does.

        Where library or store know none, there are none.
        """
        none: tuple[ListedObject, ...] = ()
        for upload in none:
            yield upload

    async def abort_upload(self, name: str, upload_id: str) -> None:
        """End an upload that `list_uploads` has returned, and drop its parts; nothing happens if it has ended.

        Raises:
            TierError: it may still be there.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Nothing else may be under way."""
