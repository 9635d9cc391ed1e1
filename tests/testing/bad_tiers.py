"""Tiers that break one rule each, with the test of the suite that has to notice."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
from shelf_tier import ShelfTier, copy_into

from tiering.keys import OffloadKey
from tiering.testing import MemoryTierConfig
from tiering.tier import TierContext, TierUsage

Keys = Sequence[OffloadKey]
Rows = Sequence[memoryview]

BAD_TIERS: dict[str, type[ShelfTier]] = {}
"""By the name of the one test that must fail."""


def breaks(test: str) -> Callable[[type[ShelfTier]], type[ShelfTier]]:
    def note(kind: type[ShelfTier]) -> type[ShelfTier]:
        assert test not in BAD_TIERS
        BAD_TIERS[test] = kind
        return kind

    return note


@breaks("test_bytes_of_every_kind_come_back")
class TakesZerosForNothing(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        loaded = await super().load(keys, rows)
        return [done and any(self.objects[key]) for key, done in zip(keys, loaded, strict=True)]


@breaks("test_the_bytes_lie_in_the_storage")
class KeepsBytesBackwards(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        return await super().store(keys, [memoryview(bytes(row)[::-1]) for row in rows])

    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        loaded = await super().load(keys, rows)
        for row, done in zip(rows, loaded, strict=True):
            if done:
                copy_into(row, bytes(row)[::-1])
        return loaded


@breaks("test_an_unknown_chunk_is_a_miss")
class HopesForTheBest(ShelfTier):
    async def lookup(self, keys: Keys) -> list[bool]:
        return [True] if len(keys) == 1 else await super().lookup(keys)


@breaks("test_hits_and_misses_mix_in_any_order")
class ShiftsAnswers(ShelfTier):
    async def lookup(self, keys: Keys) -> list[bool]:
        found = await super().lookup(keys)
        return found[::-1] if len(keys) == 5 else found


@breaks("test_an_empty_batch_has_an_empty_answer")
class StumblesOverNothing(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        _ = keys[0]
        return await super().load(keys, rows)


@breaks("test_every_answer_is_a_list_with_one_bool_per_key")
class CountsInstead(ShelfTier):
    async def lookup(self, keys: Keys) -> list[bool]:
        return [list(self.objects).count(key) for key in keys]  # type: ignore[misc]


@breaks("test_a_chunk_may_be_stored_again")
class RefusesWhatItHas(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        if len(keys) > 3 and sum(key in self.objects for key in keys) == 2:
            raise FileExistsError("already there")
        return await super().store(keys, rows)


@breaks("test_groups_are_apart")
class IgnoresTheGroup(ShelfTier):
    async def lookup(self, keys: Keys) -> list[bool]:
        known = {key[:-4] for key in self.objects}
        return [key[:-4] in known for key in keys]


@breaks("test_keys_of_any_length_and_content")
class CutsKeysShort(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        return await super().store([OffloadKey(key[:60]) for key in keys], rows)

    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        return await super().load([OffloadKey(key[:60]) for key in keys], rows)


@breaks("test_nothing_outside_of_a_row_is_written")
class WritesOneByteMore(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        loaded = await super().load(keys, rows)
        if len(rows) == 3:
            ctypes.memset(np.asarray(rows[-1]).ctypes.data + len(rows[-1]), 0, 1)
        return loaded


@breaks("test_a_store_leaves_its_rows_as_they_were")
class EncryptsInPlace(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        stored = await super().store(keys, rows)
        for row in rows:
            np.asarray(row)[0] ^= 1
        return stored


@breaks("test_a_store_keeps_a_copy")
class KeepsTheRowItself(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        new = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in self.objects]
        stored = await super().store(keys, rows)
        if len(new) == 2:
            self.objects.update(new)  # type: ignore[arg-type]
        return stored


@breaks("test_a_row_is_left_alone_after_the_call")
class WritesLate(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        loaded = await super().load(keys, rows)
        if loaded == [True, True, True, False]:
            self.later = asyncio.create_task(self.write_later(rows[0], bytes(rows[0])))
        return loaded

    async def write_later(self, row: memoryview, data: bytes) -> None:
        await asyncio.sleep(0)
        copy_into(row, data)


@breaks("test_many_calls_at_once")
class ServesThreeAtATime(ShelfTier):
    num_calls = 0

    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        self.num_calls += 1
        try:
            if self.num_calls > 3:
                raise RuntimeError("too many calls")
            await asyncio.sleep(0)
            return await super().store(keys, rows)
        finally:
            self.num_calls -= 1


@breaks("test_nobody_sees_half_an_object")
class WritesInTwoHalves(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        new = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in self.objects]
        half = self.context.row_bytes // 2
        unfinished = [memoryview(bytes(row[:half]) + bytes(len(row) - half)) for _, row in new]
        await super().store([key for key, _ in new], unfinished)
        await asyncio.sleep(0)
        for key, _ in new:
            self.objects.pop(key, None)
        return await super().store(keys, rows)


@breaks("test_an_object_of_the_wrong_length_is_a_miss")
class TakesTheFirstBytes(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        for key in keys:
            if key in self.objects:
                self.objects[key] = self.objects[key][: self.context.row_bytes]
        return await super().load(keys, rows)


@breaks("test_a_flipped_bit_is_a_miss")
class SumsUpTheFirstHalf(ShelfTier):
    def checksum(self, data: bytes | memoryview) -> int:
        return super().checksum(data[: len(data) // 2])


@breaks("test_a_corrupt_chunk_is_reported")
class HidesDamage(ShelfTier):
    def __init__(self, config: MemoryTierConfig, context: TierContext, place: Path) -> None:
        super().__init__(config, dataclasses.replace(context, report_corrupt=lambda keys: None), place)


@breaks("test_one_lost_object_costs_no_other")
class FailsAsAWhole(ShelfTier):
    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        if len(keys) == 5 and any(key in self.checksums and key not in self.objects for key in keys):
            raise OSError("one of them is missing")
        return await super().load(keys, rows)


@breaks("test_a_lost_object_may_be_stored_again")
class BelievesItsIndex(ShelfTier):
    """Knows that it has stored a chunk, and does not look."""

    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        if len(keys) == 3 and any(key in self.checksums and key not in self.objects for key in keys):
            return [True] * len(keys)
        return await super().store(keys, rows)


@breaks("test_broken_storage_costs_misses_and_may_heal")
class NeverRecovers(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        self.gave_up = getattr(self, "gave_up", False) or self.is_broken
        return [False] * len(keys) if self.gave_up else await super().store(keys, rows)


@breaks("test_it_may_be_closed_without_a_call")
class ClosesOnlyWhatWasUsed(ShelfTier):
    used = False

    def check_health(self) -> None:
        self.used = True
        super().check_health()

    async def close(self) -> None:
        if not self.used:
            raise RuntimeError("there is no connection to close")


@breaks("test_nothing_is_left_behind")
class LeavesADescriptorOpen(ShelfTier):
    num_misses = 0

    async def load(self, keys: Keys, rows: Rows) -> list[bool]:
        loaded = await super().load(keys, rows)
        self.num_misses += loaded.count(False)
        if self.num_misses == 40:
            LEFT_OPEN.append(os.dup(0))
        return loaded


@breaks("test_chunks_outlive_a_close")
class LosesTheLastStore(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        stored = await super().store(keys, rows)
        self.last = keys[0] if len(keys) == 1 and len(self.objects) == 3 else None
        return stored

    async def close(self) -> None:
        self.objects.pop(getattr(self, "last", None), None)  # type: ignore[call-overload]


@breaks("test_another_namespace_is_not_found")
class KnowsNoNamespace(ShelfTier):
    def shelf_name(self) -> tuple[Path, bytes]:
        return self.place, b""


@breaks("test_it_works_behind_a_manager")
class BelongsToTheThreadThatMadeIt(ShelfTier):
    def __init__(self, config: MemoryTierConfig, context: TierContext, place: Path) -> None:
        super().__init__(config, context, place)
        self.thread = threading.get_ident()

    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        if threading.get_ident() != self.thread:
            raise RuntimeError("this client may only be used by the thread that made it")
        return await super().store(keys, rows)


@breaks("test_a_bound_is_kept")
class TakesOneMore(ShelfTier):
    def __init__(self, config: MemoryTierConfig, context: TierContext, place: Path) -> None:
        if config.max_chunks is not None:
            config = config.model_copy(update={"max_chunks": config.max_chunks + 1})
        super().__init__(config, context, place)


@breaks("test_what_was_evicted_is_reported")
class EvictsInSilence(ShelfTier):
    def __init__(self, config: MemoryTierConfig, context: TierContext, place: Path) -> None:
        super().__init__(config, dataclasses.replace(context, report_evicted=lambda keys: None), place)


@breaks("test_a_chunk_is_gone_before_it_is_reported")
class ReportsTooEarly(ShelfTier):
    async def store(self, keys: Keys, rows: Rows) -> list[bool]:
        if self.config.max_chunks and len(self.objects) == self.config.max_chunks and keys[0] not in self.objects:
            oldest = next(iter(self.objects))
            self.context.report_evicted([oldest])
            del self.objects[oldest]
        return await super().store(keys, rows)


@breaks("test_a_touched_chunk_stays")
class IgnoresTouches(ShelfTier):
    def touch(self, keys: Keys) -> None:
        pass


@breaks("test_touch_takes_unknown_chunks_and_none")
class TouchesOnlyWhatItHas(ShelfTier):
    def touch(self, keys: Keys) -> None:
        for key in keys:
            self.objects.move_to_end(key)


@breaks("test_contains_says_what_lookup_says")
class AnswersWithTheObject(ShelfTier):
    def contains(self, key: OffloadKey) -> bool:
        return self.objects.get(key)  # type: ignore[return-value]


@breaks("test_usage_is_what_is_there")
class CountsOnlyStores(ShelfTier):
    async def usage(self) -> TierUsage:
        usage = await super().usage()
        return TierUsage(usage.used_bytes, usage.capacity_bytes, 7 * bool(self.objects))


@breaks("test_a_deleted_chunk_is_gone")
class DeletesOnlyTheFirst(ShelfTier):
    async def delete(self, keys: Keys) -> None:
        await super().delete(keys[:1])


@breaks("test_deleting_takes_unknown_chunks_and_none")
class DeletesOnlyWhatItHas(ShelfTier):
    async def delete(self, keys: Keys) -> None:
        for key in keys:
            _ = self.objects[key]
        await super().delete(keys)


@breaks("test_keys_are_listed_once_each")
class ListsTwice(ShelfTier):
    async def keys(self) -> AsyncIterator[OffloadKey]:
        for key in list(self.objects):
            yield key
            if key[-1] == 5:
                yield key


LEFT_OPEN: list[int] = []
