"""A tier that can do everything the suite asks about: the good one, of which the bad ones differ in one thing each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import xxhash

from tiering.errors import TemporaryTierError
from tiering.keys import OffloadKey
from tiering.testing import Ability, MemoryTier, MemoryTierConfig, TierTests
from tiering.tier import Tier, TierContext

Shelf = dict[OffloadKey, bytes]


class ShelfTier(MemoryTier):
    """Keeps objects in memory that outlives it, per place and namespace, with a checksum beside each."""

    shelves: ClassVar[dict[tuple[Path, bytes], MemoryTier]] = {}

    def __init__(self, config: MemoryTierConfig, context: TierContext, place: Path) -> None:
        super().__init__(config, context)
        self.place = place
        self.checksums: dict[OffloadKey, int] = {}
        self.is_broken = False

    async def open(self) -> None:
        before = self.shelves.get(self.shelf_name())
        if isinstance(before, ShelfTier):
            self.objects, self.checksums = before.objects, before.checksums
        self.shelves[self.shelf_name()] = self

    def shelf_name(self) -> tuple[Path, bytes]:
        return self.place, self.context.namespace.fingerprint

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        self.check_health()
        new = [(key, row) for key, row in zip(keys, rows, strict=True) if key not in self.objects]
        answers = await super().store(keys, rows)
        self.checksums.update((key, self.checksum(row)) for key, row in new)
        return answers

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        self.check_health()
        corrupt = [key for key in keys if key in self.objects and not self.is_intact(key)]
        await self.delete(corrupt)
        self.context.report_corrupt(corrupt)
        return await super().load(keys, rows)

    def is_intact(self, key: OffloadKey) -> bool:
        return self.checksum(self.objects[key]) == self.checksums[key]

    def checksum(self, data: bytes | memoryview) -> int:
        return xxhash.xxh3_64_intdigest(data)

    def check_health(self) -> None:
        if self.is_broken:
            raise TemporaryTierError("broken")


class ShelfTests(TierTests):
    """The back doors of a `ShelfTier`; ``kind`` is the class under test."""

    abilities = frozenset(Ability)
    kind: type[ShelfTier] = ShelfTier

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        return self.kind(MemoryTierConfig(max_chunks=max_chunks), context, place)

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        assert isinstance(tier, ShelfTier)
        return tier.objects.get(key)

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        assert isinstance(tier, ShelfTier)
        tier.objects[key] = payload

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        assert isinstance(tier, ShelfTier)
        del tier.objects[key]

    def break_storage(self, tier: Tier) -> None:
        assert isinstance(tier, ShelfTier)
        tier.is_broken = True

    def mend_storage(self, tier: Tier) -> None:
        assert isinstance(tier, ShelfTier)
        tier.is_broken = False


def copy_into(row: memoryview, data: bytes) -> None:
    np.asarray(row)[: len(data)] = np.frombuffer(data, np.uint8)
