"""One chunk at a time: is it there, store it, load and verify it, remove it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, ParamSpec, TypeVar

import xxhash

from tiering.errors import TierError
from tiering.keys import OffloadKey
from tiering.tier import TierContext
from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.config import VerdictsConfig
from tiers.s3.counters import ObjectCounters
from tiers.s3.errors import ObjectAbsentError, ObjectDamagedError, ObjectExistsError, translated
from tiers.s3.landing import Landing
from tiers.s3.object_format import HEADER_BYTES, MAX_KEY_BYTES, ObjectHeader, encode_header
from tiers.s3.object_names import ObjectNames
from tiers.s3.object_store import ObjectStore
from tiers.s3.verdicts import Verdict, Verdicts
from tiers.s3.verification import Damage, damage_in

__all__ = ["ChunkObjects"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_BYTES_NOT_WORTH_A_THREAD = 2**20
"""Rows up to this size are copied and summed up on the loop: that takes less time than to hand them to a thread."""


class ChunkObjects:
    """The chunks of one namespace as objects, one request each. Loop thread only; many operations at a time.

    Operations raise `TierError`, at their deadline (in the time of the running loop) at the latest.

    Attributes:
        honours_if_absent: whether the store tells a second writer of an object that there is one already.
    """

    def __init__(
        self,
        store: ObjectStore,
        names: ObjectNames,
        verdicts: VerdictsConfig,
        counters: ObjectCounters,
        context: TierContext,
    ) -> None:
        self.honours_if_absent = False
        self._store = store
        self._names = names
        self._verdicts = Verdicts(verdicts, context.clock)
        self._max_verdicts = verdicts.max_entries
        self._counters = counters
        self._context = context
        self._fingerprint = context.namespace.fingerprint
        self._object_bytes = HEADER_BYTES + context.row_bytes

    async def is_there(self, key: OffloadKey, deadline: float) -> bool:
        """Say whether a load would find the chunk: from memory, or by one request for the object's length."""
        if len(key) > MAX_KEY_BYTES:
            return False
        if (known := self._verdicts.get(key)) is not None:
            self._counters.remembered += 1
            return known is Verdict.PRESENT
        begun = self._verdicts.begin()
        self._counters.questions += 1
        num_bytes = await self._store.length(self._names.name_of(key), deadline)
        seen = Verdict.PRESENT if num_bytes == self._object_bytes else Verdict.ABSENT
        return self._verdicts.note(key, seen, begun) is Verdict.PRESENT

    async def store(self, key: OffloadKey, row: memoryview, deadline: float) -> bool:
        """Write the chunk, unless it is there or its key is too long; True where it is there now."""
        if len(key) > MAX_KEY_BYTES:
            self._counters.declined += 1
            return False
        name = self._names.name_of(key)

        async def pack(client: ObjectClient) -> Any:
            return await self._compute(_pack, client, self._fingerprint, key, row)

        only_if_absent = self.honours_if_absent and self._verdicts.get(key) is not Verdict.SPOILT
        try:
            await self._store.put(name, pack, deadline, only_if_absent=only_if_absent)
            self._counters.stored += 1
        except ObjectExistsError:
            if await self._store.length(name, deadline) == self._object_bytes:
                self._counters.already_stored += 1
            else:
                await self._store.put(name, pack, deadline)
                self._counters.stored += 1
        self._verdicts.note(key, Verdict.PRESENT)
        return True

    async def load(self, key: OffloadKey, row: memoryview, deadline: float) -> bool:
        """Read the chunk into ``row``; True where it is there and verified.

        An object that two readings agree to be damaged is removed, if it is provably ours.
        """
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
                    self._counters.loaded += 1
                    return True
                # One reading may have been spoilt on its way; two that agree were not.
                if damage == seen:
                    await self._give_up(key, damage, deadline)
                seen = damage
        except ObjectAbsentError:
            self._verdicts.note(key, Verdict.ABSENT, begun)
            self._counters.vanished += 1
            self._context.report_evicted([key])
            return False
        self._counters.corrupt += 1
        return False

    async def delete(self, key: OffloadKey, deadline: float) -> bool:
        """Remove the chunk, if it is there; True."""
        await self._store.delete(self._names.name_of(key), deadline)
        self._verdicts.note(key, Verdict.ABSENT)
        return True

    async def keys(self) -> AsyncIterator[OffloadKey]:
        """List the chunks that are there."""
        async for found in self._store.list(self._names.directory):
            key = self._names.key_of(found.name)
            if key is not None and found.num_bytes == self._object_bytes:
                yield key

    async def learn_by_listing(self, deadline: float) -> int:
        """List once, so that first lookups need no requests; return how many chunks were found, or fit into memory."""
        begun = self._verdicts.begin()
        num_listed = 0
        with translated("list", self._names.directory):
            async with asyncio.timeout_at(deadline):
                async for key in self.keys():
                    self._verdicts.note(key, Verdict.PRESENT, begun)
                    num_listed += 1
                    if num_listed == self._max_verdicts:
                        break
        return num_listed

    async def _read(self, key: OffloadKey, landing: Landing, deadline: float) -> Damage | None:
        try:
            await self._store.get(self._names.name_of(key), landing, deadline)
        except ObjectDamagedError as error:
            return Damage(str(error), is_ours=False)
        if not landing.is_settled:
            await self._compute(landing.settle)
        return damage_in(landing, self._fingerprint, key)

    async def _give_up(self, key: OffloadKey, damage: Damage, deadline: float) -> None:
        """See to it that a damaged object is not promised again: remove it if it is ours, else remember it."""
        name = self._names.name_of(key)
        logger.warning("tier %s: object %s is of no use: %s", self._context.name, name, damage.reason)
        verdict = Verdict.SPOILT
        if damage.is_ours:
            try:
                await self._store.delete(name, deadline)
            except TierError as error:
                logger.warning("tier %s: it stays there: %s", self._context.name, error)
            else:
                verdict = Verdict.ABSENT
                self._counters.deleted += 1
        self._verdicts.note(key, verdict)
        self._context.report_evicted([key])
        self._context.report_corrupt([key])

    async def _compute(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._context.row_bytes <= _BYTES_NOT_WORTH_A_THREAD:
            return function(*args, **kwargs)
        return await self._context.run_blocking(function, *args, **kwargs)


def _pack(client: ObjectClient, fingerprint: bytes, key: OffloadKey, row: memoryview) -> Any:
    header = ObjectHeader(fingerprint, key, row.nbytes, xxhash.xxh3_64_intdigest(row))
    return client.pack(encode_header(header), row)
