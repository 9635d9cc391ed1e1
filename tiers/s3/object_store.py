"""The store as the tier uses it: single requests, made dependable by slots, deadlines, retries, new credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from tiering.errors import TierError
from tiers.s3.clients.object_client import ListedObject, ObjectClient
from tiers.s3.config import ObjectTierConfig
from tiers.s3.connection import Connection
from tiers.s3.counters import ObjectCounters
from tiers.s3.errors import ObjectAbsentError, ObjectDamagedError, translated
from tiers.s3.landing import Landing
from tiers.s3.retry import Retries

__all__ = ["ObjectStore"]

R = TypeVar("R")


class ObjectStore:
    """Named objects. Loop thread only; many operations at a time.

    Operations raise what `tiers.s3.errors` and `tiering.errors` define, a TemporaryTierError at their deadline (in the
    time of the running loop) at the latest. One that reads or writes a row has ended when its coroutine has.
    """

    def __init__(
        self,
        make_client: Callable[[], Awaitable[ObjectClient]],
        config: ObjectTierConfig,
        counters: ObjectCounters,
        clock: Callable[[], float],
        place: str,
    ) -> None:
        """``place`` says in messages where the objects are."""
        self._place = place
        self._connection = Connection(make_client, config.limits, counters, clock)
        self._retries = Retries(config.retry, counters)

    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        """Read a whole object; see `ObjectClient.get`."""

        async def attempt(client: ObjectClient) -> None:
            await client.get(name, landing, deadline)

        async with self._slot(self._connection.transfers, deadline):
            await self._run(attempt, deadline)

    async def put(
        self,
        name: str,
        pack: Callable[[ObjectClient], Awaitable[Any]],
        deadline: float,
        *,
        only_if_absent: bool = False,
    ) -> None:
        """Write a whole object; see `ObjectClient.put`. ``pack`` makes the body, for the client that is to send it."""

        async def attempt(client: ObjectClient) -> None:
            await client.put(name, await pack(client), deadline, only_if_absent=only_if_absent)

        async with self._slot(self._connection.transfers, deadline):
            await self._run(attempt, deadline)

    async def length(self, name: str, deadline: float) -> int | None:
        """Return an object's length in bytes, or None if there is no such object."""

        async def attempt(client: ObjectClient) -> int:
            with translated("HEAD", name):
                async with asyncio.timeout_at(deadline):
                    return await client.head(name)

        async with self._slot(self._connection.questions, deadline):
            try:
                return await self._run(attempt, deadline)
            except ObjectAbsentError:
                return None

    async def delete(self, name: str, deadline: float) -> None:
        """Remove an object, if there is one."""

        async def attempt(client: ObjectClient) -> None:
            with translated("DELETE", name):
                async with asyncio.timeout_at(deadline):
                    await client.delete(name)

        async with self._slot(self._connection.transfers, deadline):
            await self._run(attempt, deadline)

    async def list(self, directory: str) -> AsyncIterator[ListedObject]:
        """Iterate over the objects below ``directory``; a failure is not tried again."""
        with self._named():
            async with self._connection.client() as client:
                async for entry in client.list(directory):
                    yield entry

    async def list_uploads(self, directory: str) -> AsyncIterator[ListedObject]:
        """Iterate over the unfinished uploads below ``directory``."""
        with self._named():
            async with self._connection.client() as client:
                async for entry in client.list_uploads(directory):
                    yield entry

    async def abort_upload(self, name: str, upload_id: str, deadline: float) -> None:
        """End an unfinished upload, if there is one."""

        async def attempt(client: ObjectClient) -> None:
            with translated("abort the upload of", name):
                async with asyncio.timeout_at(deadline):
                    await client.abort_upload(name, upload_id)

        async with self._slot(self._connection.transfers, deadline):
            await self._run(attempt, deadline)

    async def describe(self) -> tuple[str, bool]:
        """Return what the client says of itself, and whether it can write only what is absent."""
        with self._named():
            async with self._connection.client() as client:
                return client.describe(), client.can_put_if_absent

    async def close(self) -> None:
        """Close all connections; no operation may be under way."""
        await self._connection.close()

    async def _run(self, attempt: Callable[[ObjectClient], Awaitable[R]], deadline: float) -> R:
        return await self._retries.run(lambda: self._connection.run(attempt), deadline)

    @asynccontextmanager
    async def _slot(self, slots: asyncio.Semaphore, deadline: float) -> AsyncIterator[None]:
        with self._named():
            with translated("wait for", "a free slot"):
                async with asyncio.timeout_at(deadline):
                    await slots.acquire()
            try:
                yield
            finally:
                slots.release()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Let errors say where the objects are."""
        try:
            yield
        except ObjectDamagedError:
            raise
        except TierError as error:
            raise type(error)(f"{self._place}: {error}") from None
