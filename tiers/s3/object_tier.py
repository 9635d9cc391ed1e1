"""What an object tier does, whatever store is below it: keeps chunks as objects that many engines share."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from tiering.errors import PluginError, TemporaryTierError, TierError
from tiering.inventory import StoredObject
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext
from tiers.s3.announcement import announce
from tiers.s3.chunk_objects import ChunkObjects
from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.config import ObjectTierConfig
from tiers.s3.counters import ObjectCounters
from tiers.s3.object_names import ObjectNames
from tiers.s3.object_store import ObjectStore
from tiers.s3.store_inventory import list_ours

__all__ = ["ObjectTier"]

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_WARNINGS = 60.0

_SHARE_OF_TIMEOUT = 0.9
"""Requests end a little before the core gives up their call, so that what was answered in time still counts."""


class ObjectTier(Tier):
    """Chunks as objects named by their keys, one request each; the store itself is the only index.

    Engines that share a store need not know of one another: an object is written whole, its name says what it must
    hold, and a load believes only what its header and checksum prove. A key that meets an error is a miss, or not
    stored; only a call in which every key met one raises.

    Attributes:
        counters: what happened since construction.
    """

    config: ObjectTierConfig

    def __init__(self, config: ObjectTierConfig, context: TierContext) -> None:
        """Prepare without I/O.

        Raises:
            PluginError: a client library that the configuration asks for is not installed.
        """
        super().__init__(config, context)
        prefix, place, module, extra = self._settings()
        if importlib.util.find_spec(module) is None:
            raise PluginError(
                f"tier {context.name!r} needs the module {module!r}, which is not installed; it comes with: "
                f"pip install '.[{extra}]' in a checkout"
            )
        self.counters = ObjectCounters()
        self._prefix = prefix
        self._names = ObjectNames(prefix, context.namespace.fingerprint)
        self._store = ObjectStore(self._make_client, config, self.counters, context.clock, place)
        self._chunks = ChunkObjects(self._store, self._names, config.verdicts, self.counters, context)
        self._is_announced = False
        self._num_listed: int | None = None
        self._client_description = ""
        self._warned_at = float("-inf")

    @abstractmethod
    def _settings(self) -> tuple[str, str, str, str]:
        """Return the prefix of all names, words for where they are, the module needed, and the extra that brings it."""

    @abstractmethod
    async def _make_client(self) -> ObjectClient:
        """Make a client with the credentials that are found now."""

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Write down what the namespace is, and find out what the store can do.

        A store that does not answer now is no reason not to start: until it does, every chunk is a miss.

        Raises:
            PermanentTierError: there is no such bucket, or access to it is refused. Nothing stays open.
        """
        try:
            self._client_description, _ = await self._store.describe()
            await self._announce()
            if self.config.list_on_start:
                deadline = _deadline(self.config.limits.load_timeout)
                self._num_listed = await self._chunks.learn_by_listing(deadline)
        except TemporaryTierError as error:
            logger.warning("tier %s starts without its store: %s", self.context.name, error)
        except BaseException:
            await self._store.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        await self._store.close()

    def describe(self) -> str:
        condition = "not reached yet"
        if self._is_announced:
            condition = f"If-None-Match is {'honoured' if self._chunks.honours_if_absent else 'not used'}"
        listed = "" if self._num_listed is None else f"; {self._num_listed} chunks listed"
        return f"{self._client_description}; {condition}{listed}"

    async def _announce(self) -> None:
        self._chunks.honours_if_absent = await announce(
            self._store, self._names.namespace_json, self.context.namespace, _deadline(self.config.limits.store_timeout)
        )
        self._is_announced = True

    # -- data -------------------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """See `Tier.lookup`. Each chunk that nothing is remembered of costs one request for an object's length."""
        deadline = _deadline(self.config.limits.lookup_timeout)
        results = await self._for_each("lookup", [self._chunks.is_there(key, deadline) for key in keys])
        self.counters.lookup_errors += results.count(None)
        return [found is True for found in results]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.store`. A chunk that another engine has stored meanwhile counts as stored."""
        deadline = _deadline(self.config.limits.store_timeout)
        pairs = zip(keys, rows, strict=True)
        results = await self._for_each("store", [self._chunks.store(key, row, deadline) for key, row in pairs])
        self.counters.store_errors += results.count(None)
        if not self._is_announced and any(results):
            try:
                await self._announce()
            except TierError as error:
                self._warn("announcement", error)
        return [stored is True for stored in results]

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.load`. An object that two readings agree to be damaged is removed, if it is provably ours."""
        deadline = _deadline(self.config.limits.load_timeout)
        pairs = zip(keys, rows, strict=True)
        results = await self._for_each("load", [self._chunks.load(key, row, deadline) for key, row in pairs])
        self.counters.load_errors += results.count(None)
        return [loaded is True for loaded in results]

    async def _for_each(self, what: str, operations: list[Coroutine[Any, Any, bool]]) -> list[bool | None]:
        """Run one operation per key, all at once, and wait for all; None for those that met an error.

        Raises:
            TierError: what the first one met, if all met one.
        """
        results = await asyncio.gather(*operations, return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        for error in failed:
            if not isinstance(error, TierError):
                raise error
        if failed:
            self._warn(what, failed[0])
            if len(failed) == len(results):
                raise failed[0]
        return [None if isinstance(result, BaseException) else result for result in results]

    def _warn(self, what: str, error: BaseException) -> None:
        if self.context.clock() - self._warned_at >= _SECONDS_BETWEEN_WARNINGS:
            self._warned_at = self.context.clock()
            logger.warning("tier %s: %s failed for some chunks: %s", self.context.name, what, error)

    # -- maintenance ------------------------------------------------------------------------------------------------

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        """See `Tier.delete`.

        Raises:
            TierError: all of the chunks may still be there; failures of single ones are logged.
        """
        deadline = _deadline(self.config.limits.store_timeout)
        await self._for_each("delete", [self._chunks.delete(key, deadline) for key in keys])

    def keys(self) -> AsyncIterator[OffloadKey]:
        return self._chunks.keys()

    def inventory(self) -> AsyncIterator[StoredObject]:
        """See `HasInventory.inventory`. Takes two listings, of objects and of unfinished uploads."""
        return list_ours(self._store, self._prefix)

    async def remove(self, objects: Sequence[StoredObject]) -> list[bool]:
        """See `HasInventory.remove`. One request each, as many at a time as transfers."""
        deadline = _deadline(self.config.limits.store_timeout)
        results = await self._for_each("removal", [self._remove_one(stored, deadline) for stored in objects])
        return [removed is True for removed in results]

    async def _remove_one(self, stored: StoredObject, deadline: float) -> bool:
        if stored.upload_id:
            await self._store.abort_upload(stored.name, stored.upload_id, deadline)
        else:
            await self._store.delete(stored.name, deadline)
        return True


def _deadline(timeout_seconds: float) -> float:
    return asyncio.get_running_loop().time() + _SHARE_OF_TIMEOUT * timeout_seconds
