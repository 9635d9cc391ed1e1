"""What every rule needs: an open tier, chunks with bytes that belong to them, and a way to run a rule."""

from __future__ import annotations

import asyncio
import enum
import time
import unittest
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tiering.job_loop import BlockingThreads
from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.testing.guarded_rows import GuardedRows
from tiering.testing.patterns import fill_row, row_matches
from tiering.testing.resource_watch import ResourceWatch
from tiering.tier import KnowsKeys, RunBlocking, Tier, TierContext

__all__ = ["Ability", "TierSession", "TierUnderTest", "chunk", "chunks", "rule"]

Suite = TypeVar("Suite", bound="TierUnderTest")


class Ability(enum.Enum):
    """What a tier may be able to do beyond the three coroutines; the rules about it apply only where it is declared."""

    PERSISTS = "chunks outlive a close and are found by the next tier over the same place"
    VERIFIES = "a chunk with a flipped bit is not loaded"
    ANY_LENGTH = "objects of another length than a row can lie in its storage"
    EVICTS = "it keeps a given number of chunks at most"
    FOLLOWS_RECENCY = "of a bounded tier: chunks that were touched stay longest"
    DELETES = "`Tier.delete` works"
    LISTS = "`Tier.keys` works"
    BREAKS = "the suite can break its storage and mend it again"


class TierUnderTest(ABC):
    """What the author of a tier tells the suite: how to make the tier, and the back doors to its storage.

    Attributes:
        abilities: what the tier can do; rules about other abilities are skipped.
        row_bytes: size of a chunk in the tests.
        max_chunks: the bound that a tier which evicts is made with.
        max_key_bytes: longest key that it must keep; at least 68, a hash of 64 bytes.
        timeout_seconds: how long a rule may take before the tier counts as hanging.
        watches_resources: whether threads and file descriptors are counted around every rule. For a client library
            that keeps some for the life of the process.
    """

    abilities: ClassVar[frozenset[Ability]] = frozenset()
    row_bytes: ClassVar[int] = 8192
    max_chunks: ClassVar[int] = 8
    max_key_bytes: ClassVar[int] = 68
    timeout_seconds: ClassVar[float] = 20.0
    watches_resources: ClassVar[bool] = True

    @abstractmethod
    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        """Make a tier, not open yet, whose storage belongs to ``place``.

        Args:
            place: an existing directory; two tiers with the same place have the same storage.
            context: for the tier's constructor.
            max_chunks: how many chunks it may keep; None for at least 64.
        """

    @abstractmethod
    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        """Return the bytes of a chunk as they lie in the storage, without calling the tier; None if it has none."""

    @abstractmethod
    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        """Put other bytes in place of a stored chunk's, as a failing disk might: what is kept beside them, such as a
        checksum, stays. Their length differs from a row's only with `Ability.ANY_LENGTH`."""

    @abstractmethod
    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        """Make a stored chunk unreadable or take it away, as another process or a failing disk might."""

    def break_storage(self, tier: Tier) -> None:
        """Let everything that the tier does fail from now on (`Ability.BREAKS`)."""
        raise NotImplementedError

    def mend_storage(self, tier: Tier) -> None:
        """End what `break_storage` began; stored chunks are as they were."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(
        self, place: Path, *, model_name: str = "model", max_chunks: int | None = None
    ) -> AsyncIterator[TierSession]:
        """Open a tier on the running loop; close it in the end."""
        threads = BlockingThreads("tier-suite", 4)
        session = TierSession(self, threads.run, model_name)
        try:
            session.tier = self.make_tier(place, session.context, max_chunks)
            await session.tier.open()
            yield session
            await session.tier.close()
        finally:
            threads.end()

    def require(self, *abilities: Ability) -> None:
        """Skip the rule unless the tier has all of these."""
        for ability in abilities:
            if ability not in self.abilities:
                raise unittest.SkipTest(f"not declared: {ability.name}: {ability.value}")

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        """Run a scenario on a new event loop; nothing may be left behind by it."""

        async def bounded() -> None:
            async with asyncio.timeout(self.timeout_seconds):
                await scenario

        if not self.watches_resources:
            asyncio.run(bounded())
            return
        with ResourceWatch():
            asyncio.run(bounded())


class TierSession:
    """An open tier and calls of it with chunks whose bytes are known. On the event loop thread.

    Attributes:
        tier: the tier.
        context: what it was made with.
        evicted: the keys that it has reported, in order.
        present_when_reported: those of them that it then still claimed to have.
        corrupt: the keys that it has reported as corrupt.
    """

    tier: Tier

    def __init__(self, suite: TierUnderTest, run_blocking: RunBlocking, model_name: str) -> None:
        self.suite = suite
        self.evicted: list[OffloadKey] = []
        self.present_when_reported: list[OffloadKey] = []
        self.corrupt: list[OffloadKey] = []
        self.context = TierContext(
            name="tier under test",
            row_bytes=suite.row_bytes,
            namespace=Namespace(model_name, row_bytes=suite.row_bytes),
            clock=time.monotonic,
            run_blocking=run_blocking,
            report_evicted=self._note_evicted,
            report_corrupt=self.corrupt.extend,
        )

    async def store(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """Store the pattern of each key."""
        rows = GuardedRows(len(keys), self.suite.row_bytes)
        for key, row in zip(keys, rows.views, strict=True):
            fill_row(row, key)
        return _one_per_key(keys, await self.tier.store(keys, rows.views))

    async def load(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """Load and compare: what is claimed to be loaded must be the pattern of its key."""
        rows = GuardedRows(len(keys), self.suite.row_bytes)
        answers = _one_per_key(keys, await self.tier.load(keys, rows.views))
        for key, row, answer in zip(keys, rows.views, answers, strict=True):
            assert not answer or row_matches(row, key), (
                f"True for {key.hex()}, but the row has other bytes than its own"
            )
        return answers

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """Look up."""
        return _one_per_key(keys, await self.tier.lookup(keys))

    async def must_store(self, keys: Sequence[OffloadKey]) -> None:
        """Store chunks that the tier has every reason to take."""
        answers = await self.store(keys)
        assert all(answers), f"an idle tier with room declined chunks: {answers}"

    async def must_load(self, keys: Sequence[OffloadKey]) -> None:
        """Load chunks that must be there."""
        answers = await self.load(keys)
        assert all(answers), f"stored chunks were not loaded: {answers}"

    def _note_evicted(self, keys: Sequence[OffloadKey]) -> None:
        self.evicted += keys
        if isinstance(self.tier, KnowsKeys):
            self.present_when_reported += [key for key in keys if self.tier.contains(key)]


def chunk(number: int, group: int = 0) -> OffloadKey:
    """The key of a chunk."""
    return make_offload_key(number.to_bytes(32, "big"), group)


def chunks(*numbers: int) -> list[OffloadKey]:
    """The keys of several chunks."""
    return [chunk(number) for number in numbers]


def rule(
    *needed: Ability, bounded: bool = False
) -> Callable[[Callable[[Suite, TierSession], Awaitable[None]]], Callable[[Suite, Path], None]]:
    """Make a test out of a coroutine that gets an open tier.

    Args:
        needed: skip the test unless the tier has these abilities.
        bounded: whether the tier is made with a bound on its chunks.
    """

    def decorate(body: Callable[[Suite, TierSession], Awaitable[None]]) -> Callable[[Suite, Path], None]:
        def test(self: Suite, tmp_path: Path) -> None:
            self.require(*needed)

            async def scenario() -> None:
                async with self.opened(tmp_path, max_chunks=self.max_chunks if bounded else None) as tier:
                    await body(self, tier)

            self.run(scenario())

        # Not `wraps`: its __wrapped__ would make pytest look for a fixture called "tier".
        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, name, getattr(body, name))
        return test

    return decorate


def _one_per_key(keys: Sequence[OffloadKey], answers: Sequence[bool]) -> list[bool]:
    """Answers as the core would take them; whether they have the right form is a rule of its own."""
    given = [bool(answer) for answer in answers]
    return (given + [False] * len(keys))[: len(keys)]
