"""The disk tier: keeps chunks in fixed slots on local disks, and finds them again after a restart."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from tiering.errors import ConfigError, PermanentTierError
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext, TierUsage
from tiers.disk.config import DiskConfig
from tiers.disk.counters import DiskCounters
from tiers.disk.header import MAX_KEY_BYTES
from tiers.disk.journal import Journal
from tiers.disk.slot_io import Outcome, Run, SlotIO, Transfer, slot_bytes_for
from tiers.disk.slots import IndexEntry, SlotTable
from tiers.disk.storage import DiskStorage

__all__ = ["DiskTier"]

_SECONDS_UNTIL_GROWTH_RETRY = 10.0


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

    def __init__(self, config: DiskConfig, context: TierContext) -> None:
        """Prepare without I/O.

        Raises:
            ConfigError: the capacity is less than one slot per root.
        """
        super().__init__(config, context)
        self._slot_bytes = slot_bytes_for(context.row_bytes)
        num_slots = config.capacity // self._slot_bytes
        if num_slots < len(config.root_dirs):
            raise ConfigError(
                f"disk tier {context.name!r}: capacity {config.capacity} is too small; allowed: at least one chunk of "
                f"{self._slot_bytes} bytes per root, {self._slot_bytes * len(config.root_dirs)} in all"
            )
        self.counters = DiskCounters()
        self._table = SlotTable(num_slots, len(config.root_dirs))
        self._being_stored: dict[OffloadKey, asyncio.Future[bool]] = {}
        self._full_until: dict[int, float] = {}
        self._threads = asyncio.Semaphore(config.threads)
        self._storage: DiskStorage | None = None
        self._num_recovered = 0

    # -- life -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take the directories, find earlier chunks, begin the journal.

        Raises:
            PermanentTierError: a directory cannot be used or belongs to another process, direct I/O is demanded and
                does not work, or ``recover: strict`` met damage. Nothing stays locked or open.
        """
        try:
            await self._open()
        except OSError as error:
            self._release()
            raise PermanentTierError(f"disk tier {self.context.name!r} cannot be opened: {error}") from error
        except BaseException:
            self._release()
            raise

    async def _open(self) -> None:
        self._storage = storage = await self.context.run_blocking(
            DiskStorage, self.config, self.context, self._slot_bytes, self._table.num_slots
        )
        recovery = await self.context.run_blocking(storage.recover)
        self._table.restore(recovery.entries)
        self._num_recovered = len(recovery.entries)
        self._io = SlotIO(storage.roots, self.context.namespace.fingerprint, self.context.row_bytes)
        self._journal = Journal(
            storage.index_dir,
            storage.identity,
            epoch=recovery.epoch,
            snapshot_every=self.config.snapshot_every,
            entries=self._table.entries,
            counters=self.counters,
        )
        await self._journal.start()

    async def close(self) -> None:
        """Write the index and give the directories back; does nothing if the tier is not open."""
        if self._storage is not None:
            await self._journal.close()
            self._release()

    def _release(self) -> None:
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    # -- data -------------------------------------------------------------------------------------------------------

    def contains(self, key: OffloadKey) -> bool:
        """See `tiering.tier.KnowsKeys`."""
        return key in self._table

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return [key in self._table for key in keys]

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.store`. Chunks already here, or on their way here by another call, are not written again."""
        present = [entry for key in keys if (entry := self._table.pin(key))]
        others = {key: future for key in keys if (future := self._being_stored.get(key))}
        fresh = [
            (key, row) for key, row in zip(keys, rows, strict=True) if key not in self._table and key not in others
        ]
        try:
            stored = await self._write(fresh)
        finally:
            for entry in present:
                self._table.unpin(entry.slot)
        stored.update(entry.key for entry in present)
        stored.update([key for key, future in others.items() if await future])
        self._table.touch(reversed(keys))
        return [key in stored for key in keys]

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """See `Tier.load`. A chunk that does not verify is dropped; one that met an I/O error is kept."""
        transfers = [
            Transfer(entry, row) for key, row in zip(keys, rows, strict=True) if (entry := self._table.pin(key))
        ]
        try:
            outcomes = await self._perform(self._io.read, transfers)
        finally:
            for transfer in transfers:
                self._table.unpin(transfer.entry.slot)
        loaded = set()
        corrupt = []
        for entry, outcome in outcomes.items():
            match outcome:
                case Outcome.DONE:
                    loaded.add(entry.key)
                case Outcome.CORRUPT:
                    corrupt.append(entry)
                case _:
                    self.counters.read_errors += 1
        self.counters.loaded += len(loaded)
        self._drop(corrupt)
        self._table.touch(reversed(keys))
        return [key in loaded for key in keys]

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """See `tiering.tier.TracksRecency`."""
        self._table.touch(keys)

    async def _write(self, fresh: list[tuple[OffloadKey, memoryview]]) -> set[OffloadKey]:
        """Write chunks that are not here, as far as slots can be had; return the keys that are here now."""
        chunks = [(key, row) for key, row in fresh if len(key) <= MAX_KEY_BYTES]
        slots = self._take_slots(len(chunks))
        self.counters.declined += len(fresh) - len(slots)
        transfers = [
            Transfer(IndexEntry(key, slot, self._table.new_generation()), row)
            for (key, row), slot in zip(chunks, slots, strict=False)
        ]
        loop = asyncio.get_running_loop()
        self._being_stored.update((transfer.entry.key, loop.create_future()) for transfer in transfers)
        outcomes: dict[IndexEntry, Outcome] = {}
        try:
            outcomes = await self._perform(self._io.write, transfers)
        finally:
            for transfer in reversed(transfers):
                outcome = outcomes.get(transfer.entry, Outcome.FAILED)
                self._settle(transfer.entry, outcome)
                self._being_stored.pop(transfer.entry.key).set_result(outcome is Outcome.DONE)
        return {entry.key for entry, outcome in outcomes.items() if outcome is Outcome.DONE}

    def _take_slots(self, count: int) -> list[int]:
        now = self.context.clock()
        slots, victims = self._table.take(count, [root for root, until in self._full_until.items() if now < until])
        self._gone(victims)
        self.counters.evicted += len(victims)
        return slots

    def _settle(self, entry: IndexEntry, outcome: Outcome) -> None:
        """Put a slot whose write has ended where it belongs."""
        if outcome is Outcome.DONE:
            self.counters.stored += 1
            self._table.insert(*entry)
            self._journal.put(entry)
            return
        self.counters.write_errors += 1
        if outcome is Outcome.NO_SPACE:
            root = entry.slot % len(self.config.root_dirs)
            self._full_until[root] = self.context.clock() + _SECONDS_UNTIL_GROWTH_RETRY
            self._table.give_back_unbacked(entry.slot)
        else:
            self._table.give_back(entry.slot)

    def _drop(self, entries: Iterable[IndexEntry]) -> None:
        """Drop chunks found corrupt, unless their key was stored anew meanwhile."""
        dropped = [entry.key for entry in entries if self._table.holds(entry)]
        for key in dropped:
            self._table.discard(key)
        self._gone(dropped)
        self.counters.corrupt += len(dropped)

    def _gone(self, keys: list[OffloadKey]) -> None:
        for key in keys:
            self._journal.delete(key)
        if keys:
            self.context.report_evicted(keys)

    async def _perform(
        self, function: Callable[[Run], list[Outcome]], transfers: Sequence[Transfer]
    ) -> dict[IndexEntry, Outcome]:
        """Move rows on up to ``threads`` threads; return how each ended, once no thread touches any row any more."""
        runs = deque(self._io.runs(transfers))
        outcomes: dict[IndexEntry, Outcome] = {}

        def work() -> None:
            while True:
                try:
                    run = runs.popleft()
                except IndexError:
                    return
                outcomes.update(zip((transfer.entry for transfer in run), function(run), strict=True))

        async def worker() -> None:
            async with self._threads:
                await self.context.run_blocking(work)

        workers = [worker() for _ in range(min(len(runs), self.config.threads))]
        for result in await asyncio.gather(*workers, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return outcomes

    # -- maintenance ------------------------------------------------------------------------------------------------

    async def usage(self) -> TierUsage:
        return TierUsage(
            used_bytes=len(self._table) * self._slot_bytes,
            capacity_bytes=self._table.num_slots * self._slot_bytes,
            num_chunks=len(self._table),
        )

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        for key in keys:
            if key in self._table:
                self._table.discard(key)
                self._journal.delete(key)

    async def keys(self) -> AsyncIterator[OffloadKey]:
        for entry in self._table.entries():
            yield entry.key

    def describe(self) -> str:
        roots = self._storage.roots if self._storage is not None else []
        num_direct = sum(files.direct for files in roots)
        mode = "buffered I/O" if num_direct == 0 else "O_DIRECT"
        if 0 < num_direct < len(roots):
            mode += f" on {num_direct} of {len(roots)} roots"
        return f"{mode}, {self._table.num_slots} slots, {self._num_recovered} chunks recovered"
