"""The memory tier of the soak: goes wrong below, and is verified above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import xxhash

from tiering.keys import OffloadKey
from tiering.testing import (
    CONTAINED_FAULTS,
    Fault,
    FaultSchedule,
    FaultyTier,
    MemoryTier,
    MemoryTierConfig,
    TierWrapper,
)
from tiering.tier import TierContext

__all__ = ["TIER_FAULTS", "SoakTier", "SoakTierConfig"]

TIER_FAULTS = (*CONTAINED_FAULTS, Fault.FLIP)
"""Every fault that leaves the process and its memory whole; the checksum sees what `Fault.FLIP` does."""


_MANY_CHECKSUMS = 2_000
"""More than the tier ever holds: time to forget those of chunks that it has evicted."""


class SoakTierConfig(MemoryTierConfig):
    """Settings of a `SoakTier`."""

    type: Literal["soak_memory"] = "soak_memory"  # type: ignore[assignment]


class SoakTier(TierWrapper):
    """A `FaultyTier` over a `MemoryTier`, with a checksum that no fault reaches.

    Attributes:
        made: all tiers of this class, the latest last.
        faulty: the tier inside.
    """

    tier_type = "soak_memory"
    config_type = SoakTierConfig
    made: ClassVar[list[SoakTier]] = []

    def __init__(self, config: SoakTierConfig, context: TierContext) -> None:
        self.faulty = FaultyTier(MemoryTier(config, context), FaultSchedule(), is_on=False)
        super().__init__(self.faulty)
        self._checksums: dict[OffloadKey, int] = {}
        self.made.append(self)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        checksums = [xxhash.xxh3_64_intdigest(row) for row in rows]
        self._checksums.update(zip(keys, checksums, strict=True))
        answers = await super().store(keys, rows)
        if len(self._checksums) > _MANY_CHECKSUMS:
            self._checksums = {key: known for key, known in self._checksums.items() if self.contains(key)}
        return answers

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        answers = await super().load(keys, rows)
        if not isinstance(answers, list) or len(answers) != len(keys):
            return answers
        verified = [
            done and xxhash.xxh3_64_intdigest(row) == self._checksums.get(key)
            for key, row, done in zip(keys, rows, answers, strict=True)
        ]
        await self.delete([key for key, done, right in zip(keys, answers, verified, strict=True) if done and not right])
        return verified
