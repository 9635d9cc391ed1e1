"""The contract of a secondary tier: what its author writes, and what the core does in return.

A tier keeps one object per chunk, named by its offload key. The author writes three coroutines over batches of keys
and buffers; there are no job numbers, no row numbers, no threads and no event loop to look after.
``tiers/README.md`` walks through a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tiering.hook_marker import hookimpl
from tiering.keys import OffloadKey
from tiering.naming import Namespace
from tiering.quantities import ByteSize, Duration

__all__ = [
    "API_VERSION",
    "BreakerConfig",
    "ByteSize",
    "Duration",
    "KnowsKeys",
    "LimitsConfig",
    "RunBlocking",
    "Tier",
    "TierConfig",
    "TierContext",
    "TierUsage",
    "TracksRecency",
    "hookimpl",
]

API_VERSION = 1
"""Version of this contract. A tier built for a newer one is refused; older ones keep working."""

P = ParamSpec("P")
R = TypeVar("R")


class RunBlocking(Protocol):
    """Runs a blocking call on the tier's own threads; see `TierContext.run_blocking`."""

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]: ...


class LimitsConfig(BaseModel):
    """How long and how much the core waits for a tier. Deadlines act on keys: what is late is a miss, or pinned no
    longer than the call that is late; no call is cancelled."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lookup_timeout: Duration = Field(default=1.0, gt=0, description="a key not answered for so long counts as absent")
    load_timeout: Duration = Field(default=10.0, gt=0, description="a chunk not loaded in this time counts as absent")
    store_timeout: Duration = Field(default=60.0, gt=0, description="a store not ended in this time counts as failed")
    hedge_quantile: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="a load slower than this quantile of the tier's last ones is begun from the next tier too",
    )
    store_share: float = Field(
        default=0.5, gt=0, le=1, description="share of the CPU rows that stores to this tier may pin; more are shed"
    )


class BreakerConfig(BaseModel):
    """When a tier is left alone, and when it is tried again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    window: int = Field(default=20, ge=1, le=10_000, description="how many of the last jobs are looked at")
    min_failures: int = Field(default=5, ge=1, description="failed or late jobs among them before it opens")
    failure_ratio: float = Field(default=0.5, gt=0, le=1, description="their share among them before it opens")
    open_for: Duration = Field(default=5.0, description="how long it stays open before a first try")
    max_open_for: Duration = Field(default=60.0, description="the most it stays open, after several failed tries")
    max_corrupt: int = Field(default=100, ge=1, description="corrupt chunks within an hour before it is quarantined")
    quarantine_for: Duration = Field(default=600.0, description="how long it then stays open before a first try")

    @model_validator(mode="after")
    def _can_open(self) -> Self:
        if self.min_failures > self.window:
            raise ValueError(
                f"would never open: min_failures is {self.min_failures} of the last {self.window} jobs; "
                f"allowed: 1 to {self.window}, or a larger window"
            )
        return self


class TierConfig(BaseModel):
    """Settings of one tier in ``secondary_tier_configs``; a tier derives its own and adds fields.

    Unknown keys are refused. Field descriptions become the tier's reference documentation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: str = Field(description="which tier this is: the name it is installed under")
    name: str | None = Field(
        default=None, min_length=1, description="how metrics, events and requests call it; default: its type"
    )
    threads: int = Field(default=4, ge=1, le=64, description="threads for the tier's blocking calls")
    isolation: Literal["thread", "process"] = Field(
        default="thread", description="whether it runs on a thread of the engine or in a process of its own"
    )
    limits: LimitsConfig = Field(default=LimitsConfig(), description="deadlines, and how much may be under way")
    breaker: BreakerConfig = Field(default=BreakerConfig(), description="when a failing tier is left alone")

    def exclusive_resources(self) -> list[str]:
        """Name what no other tier of the engine may use, such as its directories.

        Each is a path or URL that stands for itself and for all below it; two that are the same or nested are
        refused before anything is created.
        """
        return []


@dataclass(frozen=True, slots=True)
class TierContext:
    """What the core gives a tier at construction.

    Attributes:
        name: the tier's name, unique within the engine.
        row_bytes: the exact size of every row; 0 in a run without data.
        namespace: what the bytes depend on; objects of another namespace must never be found.
        clock: monotonic seconds.
        run_blocking: ``await run_blocking(function, *args)`` runs a blocking call on threads that the core knows
            about. It is not cancelled: a call that writes into a row has ended when the await ends.
        report_evicted: to be called, from any thread, with the keys of chunks that the tier no longer has (evicted,
            expired, corrupt, deleted), after they are gone.
        report_stored: likewise, with the keys of chunks that are there again without a store (a disk has come back).
        report_corrupt: likewise, with the keys of chunks that were dropped because their bytes did not verify. Many of
            them quarantine the tier.
    """

    name: str
    row_bytes: int
    namespace: Namespace
    clock: Callable[[], float]
    run_blocking: RunBlocking
    report_evicted: Callable[[Sequence[OffloadKey]], None]
    report_stored: Callable[[Sequence[OffloadKey]], None] = lambda keys: None
    report_corrupt: Callable[[Sequence[OffloadKey]], None] = lambda keys: None


@dataclass(frozen=True, slots=True)
class TierUsage:
    """How full a tier is.

    Attributes:
        used_bytes: bytes taken by live objects, with their overhead.
        capacity_bytes: the bound, or None where there is none.
        num_chunks: number of live objects, or None where the tier cannot know.
    """

    used_bytes: int
    capacity_bytes: int | None = None
    num_chunks: int | None = None


class Tier(ABC):
    """A place below the CPU rows where chunks are kept.

    Guaranteed by the core
        All coroutines run on one event loop thread, the same for the tier's whole life. Several calls may be in
        progress at once, also for one key. `open` ends before any other call starts; `close` is called once, after
        all of them have ended. Keys of one call are distinct. ``rows`` are contiguous memoryviews of exactly
        ``context.row_bytes`` bytes, one per key in the same order: read-only by convention in `store`, to be filled
        in `load`. They stay valid, and are nobody else's, until the coroutine has ended; it is never cancelled
        while it may touch a row. Then they are released: to use one that was kept raises ValueError.
    Owed by the tier
        A reader never sees half an object, or bytes of another key or namespace. Nothing of a batch touches its rows
        after the coroutine has ended. A call that blocks goes through ``context.run_blocking``.
    Result per key
        A list with one bool per key, in the order given. Anything else, such as an error that `asyncio.gather` has
        returned, is counted as a failure of the whole batch.
    Errors
        Any exception means that nothing of the batch counts. `tiering.errors.TemporaryTierError` says that another
        try may help. The engine sees a miss in every case.
    Blocking and cancellation
        Nothing may block the loop. Deadlines act on keys in the core, not on calls; limits that really end a call
        (socket timeouts) are the tier's own.
    """

    tier_type: ClassVar[str]
    config_type: ClassVar[type[TierConfig]] = TierConfig
    api_version: ClassVar[int] = API_VERSION

    def __init__(self, config: Any, context: TierContext) -> None:
        """Keep the arguments; do no I/O here. ``config`` is an instance of `config_type`."""
        self.config = config
        self.context = context

    async def open(self) -> None:
        """Make ready: connect, recover an index, take locks.

        Errors: an exception here stops the engine's start with a message naming the tier; everything taken before
        it was raised must have been given back.
        """

    async def close(self) -> None:
        """Give everything back. Called once, also after a failed start of another tier."""

    @abstractmethod
    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        """Say for each key whether `load` would find it. Keys may be of several groups, in any order."""

    @abstractmethod
    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """Keep a copy of each row; True where the tier now holds the chunk (also if it did before).

        A store is a suggestion: a tier may decline any chunk with False.
        """

    @abstractmethod
    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        """Fill each row with exactly the bytes stored under its key; True where that was done and verified.

        A row whose answer is False may hold anything afterwards.
        """

    async def usage(self) -> TierUsage:
        """Return how full the tier is."""
        return TierUsage(used_bytes=0)

    async def delete(self, keys: Sequence[OffloadKey]) -> None:
        """Forget these chunks; unknown keys are ignored."""
        raise NotImplementedError(f"{type(self).__name__} cannot delete chunks")

    def keys(self) -> AsyncIterator[OffloadKey]:
        """Iterate over the keys of this namespace, in no particular order, for the maintenance tools."""
        raise NotImplementedError(f"{type(self).__name__} cannot list its keys")

    def describe(self) -> str:
        """Return one line about what was found and chosen when opening, for the start-up log."""
        return ""


@runtime_checkable
class KnowsKeys(Protocol):
    """A tier with its index in memory: its hits promote in the step in which they are looked up."""

    def contains(self, key: OffloadKey) -> bool:
        """Say whether `load` would find ``key``. Called on the scheduler thread, concurrently with the tier's
        coroutines: it must not block, wait for a lock or do I/O. A dict membership test is what is meant."""
        ...


@runtime_checkable
class TracksRecency(Protocol):
    """A tier that evicts by recency and wants to know which chunks requests used without reading them from it."""

    def touch(self, keys: Sequence[OffloadKey]) -> None:
        """Make these chunks the most recent, the last one given most recent of all; unknown keys are ignored.

        Called on the event loop thread; must not block."""
        ...
