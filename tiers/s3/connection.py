"""The client that a tier uses now: replaced when credentials are refused, and made anew in a forked process."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.config import ObjectLimitsConfig
from tiers.s3.counters import ObjectCounters
from tiers.s3.errors import AccessRefusedError

__all__ = ["Connection"]

R = TypeVar("R")

_SECONDS_BETWEEN_RENEWALS = 10.0


class Connection:
    """Runs operations on a client; one that was replaced is closed with its last operation. Loop thread only."""

    def __init__(
        self,
        make_client: Callable[[], Awaitable[ObjectClient]],
        limits: ObjectLimitsConfig,
        counters: ObjectCounters,
        clock: Callable[[], float],
    ) -> None:
        self._make_client = make_client
        self._limits = limits
        self._counters = counters
        self._clock = clock
        self._pid = os.getpid()
        self._client: ObjectClient | None = None
        self._num_uses: dict[ObjectClient, int] = {}
        self._renewed_at = float("-inf")
        self._making = asyncio.Lock()
        self._transfers = asyncio.Semaphore(limits.transfers)
        self._questions = asyncio.Semaphore(limits.questions)

    @property
    def transfers(self) -> asyncio.Semaphore:
        """Bounds how many objects are read or written at a time."""
        self._notice_fork()
        return self._transfers

    @property
    def questions(self) -> asyncio.Semaphore:
        """Bounds how many existence checks run at a time."""
        self._notice_fork()
        return self._questions

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ObjectClient]:
        """Lend the client for one operation.

        Raises:
            TierError: none can be made.
        """
        client = await self._current()
        self._num_uses[client] += 1
        try:
            yield client
        finally:
            self._num_uses[client] -= 1
            await self._close_unused()

    async def run(self, attempt: Callable[[ObjectClient], Awaitable[R]]) -> R:
        """Return what ``attempt`` returns; refused credentials are looked for anew, and the attempt made once more.

        Raises:
            Exception: what the attempt raised, or the making of a client.
        """
        async with self.client() as client:
            try:
                return await attempt(client)
            except AccessRefusedError:
                if not await self._renew(client):
                    raise
        async with self.client() as client:
            return await attempt(client)

    async def close(self) -> None:
        """Close all clients; no operation may be under way."""
        self._client = None
        await self._close_unused()

    async def _renew(self, refused: ObjectClient) -> bool:
        """Replace the client whose credentials were refused; False if that was tried only moments ago."""
        async with self._making:
            if self._client is refused:
                if self._clock() - self._renewed_at < _SECONDS_BETWEEN_RENEWALS:
                    return False
                self._renewed_at = self._clock()
                self._counters.renewals += 1
                await self._replace()
            return True

    async def _current(self) -> ObjectClient:
        self._notice_fork()
        async with self._making:
            return self._client or await self._replace()

    async def _replace(self) -> ObjectClient:
        self._client = client = await self._make_client()
        self._num_uses[client] = 0
        return client

    def _notice_fork(self) -> None:
        """Start anew in a child process: of its parent's clients, sockets and locks, none may be touched."""
        if os.getpid() != self._pid:
            for client in self._num_uses:
                # If it were collected here, it would take its sockets out of the parent's event loop: both share it.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
            self.__init__(self._make_client, self._limits, self._counters, self._clock)  # type: ignore[misc]

    async def _close_unused(self) -> None:
        unused = [client for client, uses in self._num_uses.items() if uses == 0 and client is not self._client]
        for client in unused:
            del self._num_uses[client]
            await client.close()
