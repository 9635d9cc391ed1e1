"""The seam to a client library: the six things that an object tier asks of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from tiers.s3.landing import Landing

__all__ = ["ObjectClient"]


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
    def list(self, directory: str) -> AsyncIterator[tuple[str, int]]:
        """Iterate over name and length of all objects whose name begins with ``directory``, which ends with a slash.

        Raises:
            TierError: the listing ends here.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections. Nothing else may be under way."""
