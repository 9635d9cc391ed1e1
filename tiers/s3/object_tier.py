"""What an object tier does, whatever store is below it: keeps chunks as objects that many engines share."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

import xxhash

from tiering.errors import PluginError, TemporaryTierError, TierError
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext
from tiers.s3.announcement import announce
from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.config import ObjectTierConfig
from tiers.s3.counters import ObjectCounters
from tiers.s3.errors import ObjectAbsentError, ObjectDamagedError, ObjectExistsError, translated
from tiers.s3.landing import Landing
from tiers.s3.object_format import HEADER_BYTES, MAX_KEY_BYTES, ObjectHeader, encode_header
from tiers.s3.object_names import ObjectNames
from tiers.s3.object_store import ObjectStore
from tiers.s3.verdicts import Verdict, Verdicts
from tiers.s3.verification import Damage, damage_in

__all__ = ["ObjectTier"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_SECONDS_BETWEEN_WARNINGS = 60.0

_SHARE_OF_TIMEOUT = 0.9
"""Requests end a little before the core gives up their call, so that what was answered in time still counts."""

_BYTES_NOT_WORTH_A_THREAD = 2**20
"""Rows up to this size are copied and summed up on the loop: that takes less time than to hand them to a thread."""


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
        prefix, module, extra = self._settings()
        if importlib.util.find_spec(module) is None:
            raise PluginError(
                f"tier {context.name!r} needs the module {module!r}, which is not installed; it comes with: "
                f"pip install 'kv-tiering[{extra}]'"
            )
        self.counters = ObjectCounters()
        self._object_bytes = HEADER_BYTES + context.row_bytes
        self._fingerprint = context.namespace.fingerprint
        self._names = ObjectNames(prefix, self._fingerprint)
        self._verdicts = Verdicts(config.verdicts, context.clock)
        self._store = ObjectStore(self._make_client, config, self.counters, context.clock)
        self._is_announced = False
        self._honours_if_absent = False
        self._num_listed: int | None = None
        self._client_description = ""
        self._warned_at = float("-inf")

    @abstractmethod
    def _settings(self) -> tuple[str, str, str]:
        """Return the prefix of all names, the module that is needed, and the extra that it comes with."""

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
                await self._learn_by_listing()
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
            condition = f"If-None-Match is {'honoured' if self._honours_if_absent else 'not used'}"
        listed = "" if self._num_listed is None else f"; {self._num_listed} chunks listed"
        return f"{self._client_description}; {condition}{listed}"

    async def _announce(self) -> None:
        self._honours_if_absent = await announce(
            self._store, self._names.namespace_json, self.context.namespace, _deadline(self.config.limits.store_timeout)
        )
        self._is_announced = True

    async def _learn_by_listing(self) -> None:
        begun = self._verdicts.begin()
        num_listed = 0
        with translated("list", self._names.directory):
            async with asyncio.timeout_at(_deadline(self.config.limits.load_timeout)):
                async for key in self.keys():
                    self._verdicts.note(key, Verdict.PRESENT, begun)
                    num_listed += 1
                    if num_listed == self.config.verdicts.max_entries:
                        break
        self._num_listed = num_listed

    # -- data -------------------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """See `Tier.lookup`. Each chunk that nothing is remembered of costs one request for an object's length."""
        deadline = _deadline(self.config.limits.lookup_timeout)
        results = await self._for_each("lookup", [self._is_there(key, deadline) for key in keys])
        self.counters.lookup_errors += results.count(None)
        return [found is True for found in results]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.store`. A chunk that another engine has stored meanwhile counts as stored."""
        deadline = _deadline(self.config.limits.store_timeout)
        pairs = zip(keys, rows, strict=True)
        results = await self._for_each("store", [self._store_one(key, row, deadline) for key, row in pairs])
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
        results = await self._for_each("load", [self._load_one(key, row, deadline) for key, row in pairs])
        self.counters.load_errors += results.count(None)
        return [loaded is True for loaded in results]

    async def _is_there(self, key: OffloadKey, deadline: float) -> bool:
        if len(key) > MAX_KEY_BYTES:
            return False
        if (known := self._verdicts.get(key)) is not None:
            self.counters.remembered += 1
            return known is Verdict.PRESENT
        begun = self._verdicts.begin()
        self.counters.questions += 1
        num_bytes = await self._store.length(self._names.name_of(key), deadline)
        seen = Verdict.PRESENT if num_bytes == self._object_bytes else Verdict.ABSENT
        return self._verdicts.note(key, seen, begun) is Verdict.PRESENT

    async def _store_one(self, key: OffloadKey, row: memoryview, deadline: float) -> bool:
        if len(key) > MAX_KEY_BYTES:
            self.counters.declined += 1
            return False
        name = self._names.name_of(key)

        async def pack(client: ObjectClient) -> Any:
            return await self._compute(_pack, client, self._fingerprint, key, row)

        only_if_absent = self._honours_if_absent and self._verdicts.get(key) is not Verdict.SPOILT
        try:
            await self._store.put(name, pack, deadline, only_if_absent=only_if_absent)
            self.counters.stored += 1
        except ObjectExistsError:
            if await self._store.length(name, deadline) == self._object_bytes:
                self.counters.already_stored += 1
            else:
                await self._store.put(name, pack, deadline)
                self.counters.stored += 1
        self._verdicts.note(key, Verdict.PRESENT)
        return True

    async def _load_one(self, key: OffloadKey, row: memoryview, deadline: float) -> bool:
        if len(key) > MAX_KEY_BYTES:
            return False
        begun = self._verdicts.begin()
        landing = Landing(row)
        seen: Damage | None = None
        try:
            for _ in range(2):
                damage = await self._read(key, landing, deadline)
                if damage is None:
                    self._verdicts.note(key, Verdict.PRESENT, begun)
                    self.counters.loaded += 1
                    return True
                # One reading may have been spoilt on its way; two that agree were not.
                if damage == seen:
                    await self._give_up(key, damage, deadline)
                seen = damage
        except ObjectAbsentError:
            self._verdicts.note(key, Verdict.ABSENT, begun)
            self.counters.vanished += 1
            self.context.report_evicted([key])
            return False
        self.counters.corrupt += 1
        return False

    async def _read(self, key: OffloadKey, landing: Landing, deadline: float) -> Damage | None:
        try:
            await self._store.get(self._names.name_of(key), landing, deadline)
        except ObjectDamagedError as error:
            return Damage(str(error), is_ours=False)
        return await self._compute(damage_in, landing, self._fingerprint, key)

    async def _give_up(self, key: OffloadKey, damage: Damage, deadline: float) -> None:
        """See to it that a damaged object is not promised again: remove it if it is ours, else remember it."""
        name = self._names.name_of(key)
        logger.warning("tier %s: object %s is of no use: %s", self.context.name, name, damage.reason)
        verdict = Verdict.SPOILT
        if damage.is_ours:
            try:
                await self._store.delete(name, deadline)
            except TierError as error:
                self._warn("delete", error)
            else:
                verdict = Verdict.ABSENT
                self.counters.deleted += 1
        self._verdicts.note(key, verdict)
        self.context.report_evicted([key])
        self.context.report_corrupt([key])

    async def _compute(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self.context.row_bytes <= _BYTES_NOT_WORTH_A_THREAD:
            return function(*args, **kwargs)
        return await self.context.run_blocking(function, *args, **kwargs)

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
        await self._for_each("delete", [self._delete_one(key, deadline) for key in keys])

    async def _delete_one(self, key: OffloadKey, deadline: float) -> bool:
        await self._store.delete(self._names.name_of(key), deadline)
        self._verdicts.note(key, Verdict.ABSENT)
        return True

    async def keys(self) -> AsyncIterator[OffloadKey]:
        async for name, num_bytes in self._store.list(self._names.directory):
            key = self._names.key_of(name)
            if key is not None and num_bytes == self._object_bytes:
                yield key


def _pack(client: ObjectClient, fingerprint: bytes, key: OffloadKey, row: memoryview) -> Any:
    header = ObjectHeader(fingerprint, key, row.nbytes, xxhash.xxh3_64_intdigest(row))
    return client.pack(encode_header(header), row)


def _deadline(timeout_seconds: float) -> float:
    return asyncio.get_running_loop().time() + _SHARE_OF_TIMEOUT * timeout_seconds
