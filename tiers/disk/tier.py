"""The disk tier: keeps chunks in fixed slots on local disks, and finds them again after a restart."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence

from tiering.errors import ConfigError, PermanentTierError
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext, TierUsage
from tiers.disk.admission import SecondOffer, WriteBudget
from tiers.disk.bad_slots import BadSlots
from tiers.disk.catalogue import Catalogue
from tiers.disk.config import DiskConfig
from tiers.disk.counters import DiskCounters
from tiers.disk.eviction import EVICTION_RULES
from tiers.disk.header import MAX_KEY_BYTES
from tiers.disk.io_queue import IoQueue
from tiers.disk.preallocation import Preallocation
from tiers.disk.probe import Health
from tiers.disk.root import Root
from tiers.disk.roots import Roots
from tiers.disk.slot_io import Failures, Outcome, SlotIO, slot_bytes_for
from tiers.disk.slots import IndexEntry, SlotTable
from tiers.disk.system_calls import SystemCalls
from tiers.disk.transfers import Transfers

__all__ = ["DiskTier"]

_STORES_PER_THREAD = 2


class DiskTier(Tier):
    """Chunks in slab files, least recently used out first.

    One process owns a namespace's directory. Everything is decided on the event loop thread; worker threads move and
    verify bytes. A chunk enters the index when its write has ended, so `contains` never promises half an object; a
    load believes only a slot whose header and checksum fit. A store or load makes its keys the most recent ones, the
    first key of the call most recent of all.

    Attributes:
        counters: what happened since construction.
    """

    tier_type = "disk"
    config_type = DiskConfig
    config: DiskConfig

    def __init__(self, config: DiskConfig, context: TierContext, system: SystemCalls | None = None) -> None:
        """Prepare without I/O. ``system`` is for tests.

        Raises:
            ConfigError: the capacity is less than one slot per root, or of more slots than memory has room to list.
        """
        super().__init__(config, context)
        num_roots = len(config.root_dirs)
        self._slot_bytes = slot_bytes_for(context.row_bytes)
        num_slots = config.capacity // self._slot_bytes
        if num_slots < num_roots:
            raise ConfigError(
                f"disk tier {context.name!r}: capacity {config.capacity} is too small; allowed: at least one chunk of "
                f"{self._slot_bytes} bytes per root, {self._slot_bytes * num_roots} in all"
            )
        self.counters = DiskCounters()
        system = system or SystemCalls()
        try:
            self._table = SlotTable(num_slots, num_roots, EVICTION_RULES[config.eviction], system.wall_microseconds)
        except (MemoryError, ValueError) as error:  # ValueError: more than an array can have
            raise ConfigError(
                f"disk tier {context.name!r}: capacity {config.capacity} is too large; an index of {num_slots} chunks "
                "does not fit into memory"
            ) from error
        self._present = self._table.present
        queue = IoQueue(context.run_blocking, config.threads)
        roots = [
            Root(idx, (num_slots - idx + num_roots - 1) // num_roots, self._slot_bytes, config, context)
            for idx in range(num_roots)
        ]
        self._roots = Roots(
            roots,
            config,
            context,
            system,
            table=self._table,
            queue=queue,
            counters=self.counters,
        )
        bad_slots = BadSlots(num_roots)
        self._catalogue = Catalogue(
            config,
            context,
            system,
            table=self._table,
            roots=self._roots,
            bad_slots=bad_slots,
            counters=self.counters,
        )
        self._transfers = Transfers(
            SlotIO(roots, context.namespace.fingerprint, context.row_bytes),
            queue,
            self._roots,
            bad_slots=bad_slots,
            counters=self.counters,
            full_until=lambda: context.clock() + config.probe_interval,
        )
        self._preallocation = Preallocation(self._roots, queue)
        self._second_offer = SecondOffer(num_slots) if config.admission == "second_offer" else None
        self._budget = (
            WriteBudget(config.write_budget, self._slot_bytes, context.clock) if config.write_budget else None
        )
        # Of each chunk on its way here, what will be said about the call that brings it: the keys stored.
        self._being_stored: dict[OffloadKey, asyncio.Future[frozenset[OffloadKey]]] = {}
        # Stores beyond those that keep the threads busy wait here: planning them would only keep the interpreter lock
        # from the threads, and evict chunks long before their slots are written to.
        self._turn_to_store = asyncio.Semaphore(_STORES_PER_THREAD * config.threads)
        self._owner_pid: int | None = None
        self._num_recovered = 0

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the directories, find earlier chunks, begin the journals. Roots that fail are left out for now.

        Raises:
            PermanentTierError: no directory can be used, one belongs to another process, direct I/O is demanded and
                does not work, or ``recover: strict`` met damage. Nothing stays locked or open.
        """
        try:
            await self._roots.open()
        except OSError as error:
            self._roots.release()
            raise PermanentTierError(f"disk tier {self.context.name!r} cannot be opened: {error}") from error
        except BaseException:
            self._roots.release()
            raise
        self._owner_pid = os.getpid()
        self._num_recovered = len(self._table)

    async def close(self) -> None:
        """Write the index and give the directories back; does nothing if the tier is not open."""
        if self._owner_pid is None:
            return
        if self._owner_pid != os.getpid():
            self._roots.release()
            return
        await self._preallocation.settled()
        await self._roots.close()
        self._owner_pid = None

    def _check_owner(self) -> None:
        if self._owner_pid != os.getpid():
            raise PermanentTierError(
                f"disk tier {self.context.name!r} was opened by process {self._owner_pid}, and this is process "
                f"{os.getpid()}; allowed: a forked child opens a tier of its own, with other root_dirs"
            )

    # -- data -------------------------------------------------------------------------------------------------------

    def contains(self, key: OffloadKey) -> bool:
        """See `tiering.tier.KnowsKeys`."""
        return key in self._present

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        self._catalogue.expire()
        return [key in self._table for key in keys]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.store`. Chunks already here, or on their way here by another call, are not written again."""
        self._check_owner()
        async with self._turn_to_store:
            return await self._store(keys, rows)

    async def _store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        self._catalogue.expire()
        attempts = self._roots.revive()
        if attempts and len(self._roots.unusable()) == len(self.config.root_dirs):
            await asyncio.wait(attempts)
        here = self._table.pin(keys)
        others = {key: future for key in keys if (future := self._being_stored.get(key))}
        fresh = [
            (key, row) for key, row in zip(keys, rows, strict=True) if key not in self._present and key not in others
        ]
        try:
            stored = await self._write(fresh)
        finally:
            self._table.unpin(here)
        if here or others:
            stored.update(entry.key for entry in here)
            stored.update([key for key, future in others.items() if key in await future])
            self._table.touch(entry.key for entry in here)
            self._table.refresh(reversed(keys))
        return [key in stored for key in keys]

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.load`. A chunk that does not verify is dropped; one that met an I/O error is kept."""
        self._check_owner()
        self._catalogue.expire()
        self._roots.revive()
        entries = self._table.pin(keys)
        row_of = dict(zip(keys, rows, strict=True))
        try:
            failures = await self._transfers.read(entries, [row_of[entry.key] for entry in entries])
        finally:
            self._table.unpin(entries)
        loaded = {entry.key for entry in entries if entry not in failures}
        self.counters.loaded += len(loaded)
        self._catalogue.drop_corrupt(entry for entry, outcome in failures.items() if outcome is Outcome.CORRUPT)
        self._table.touch(reversed(keys))
        return [key in loaded for key in keys]

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See `tiering.tier.TracksRecency`."""
        self._table.touch(keys)

    async def _write(self, fresh: list[tuple[OffloadKey, memoryview]]) -> set[OffloadKey]:
        """Write chunks that are not here, as far as they are admitted and slots can be had; return the keys written."""
        chunks = self._admit(fresh)
        slots = self._catalogue.take_slots(len(chunks))
        self.counters.declined += len(chunks) - len(slots)
        if self._budget is not None:
            self._budget.give_back(len(chunks) - len(slots))
        self._preallocation.follow(slots)
        chunks = chunks[: len(slots)]
        keys = [key for key, _ in chunks]
        entries = list(map(IndexEntry, keys, slots, self._table.new_generations(len(slots))))
        stored: set[OffloadKey] = set()
        ended = asyncio.get_running_loop().create_future()
        self._being_stored |= dict.fromkeys(keys, ended)
        failures: Failures | None = None
        try:
            failures = await self._transfers.write(entries, [row for _, row in chunks])
            self.counters.written_bytes += self._slot_bytes * (len(entries) - len(failures))
        finally:
            if failures is None:
                failures = dict.fromkeys(entries, Outcome.FAILED)
            for key in keys:
                del self._being_stored[key]
            # The last to go is the head of a prefix.
            stored.update(entry.key for entry in self._catalogue.settle(entries[::-1], failures))
            ended.set_result(frozenset(stored))
        return stored

    def _admit(self, fresh: list[tuple[OffloadKey, memoryview]]) -> list[tuple[OffloadKey, memoryview]]:
        chunks = [(key, row) for key, row in fresh if len(key) <= MAX_KEY_BYTES]
        self.counters.declined += len(fresh) - len(chunks)
        if self._second_offer is not None:
            admitted = [chunk for chunk in chunks if self._second_offer.admits(chunk[0])]
            self.counters.not_admitted += len(chunks) - len(admitted)
            chunks = admitted
        if self._budget is not None:
            affordable = self._budget.take(len(chunks))
            self.counters.over_budget += len(chunks) - affordable
            chunks = chunks[:affordable]
        return chunks

    # -- maintenance ------------------------------------------------------------------------------------------------

    async def usage(self) -> TierUsage:
        return TierUsage(
            used_bytes=len(self._table) * self._slot_bytes,
            capacity_bytes=self._table.num_slots * self._slot_bytes,
            num_chunks=len(self._table),
        )

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        """See `Tier.delete`. What lies in a root out of use at the time comes back with it."""
        self._check_owner()
        self._catalogue.drop([entry for key in keys if (entry := self._table.entry(key))])

    async def keys(self) -> AsyncIterator[OffloadKey]:
        for key in self._table.keys():  # noqa: SIM118  (a table is no mapping)
            yield key

    def describe(self) -> str:
        usable = [root.slabs for root in self._roots if root.has_slabs]
        num_direct = sum(slabs.direct for slabs in usable)
        mode = "buffered I/O" if num_direct == 0 else "O_DIRECT"
        if 0 < num_direct < len(usable):
            mode += f" on {num_direct} of {len(usable)} roots"
        if len(usable) < len(self.config.root_dirs):
            mode += f", {len(usable)} of {len(self.config.root_dirs)} roots usable"
        num_read_only = [root.health for root in self._roots].count(Health.READ_ONLY)
        if num_read_only:
            mode += f", {num_read_only} of {len(self.config.root_dirs)} roots read-only"
        return f"{mode}, {self._table.num_slots} slots, {self._num_recovered} chunks recovered"
