"""The contract between an engine's scheduler and whatever keeps its offloaded chunks.

Everything here is called on the engine's scheduler thread, returns at once and does no I/O. A *step* is one schedule
step of the engine: lookups and prepares in any order, then `on_schedule_end`. A call between two steps belongs to the
later one.

Keys are given as any iterable: a list, a set, an iterator. Keys that repeat within a call count once; an empty call
has no effect. The tables of results in docs/contract.md are walked by ``tests/manager/test_contract_table.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tiering.events import OffloadingEvent
from tiering.keys import OffloadKey
from tiering.request import ReqContext
from tiering.transfer_specs import CPULoadStoreSpec, PrepareStoreOutput

__all__ = ["LookupStatus", "OffloadingManager", "PrefixLookup"]


class LookupStatus(Enum):
    """Where a chunk is, as far as its reader is concerned."""

    READY = "ready"
    """In a row, readable, and staying there until the end of the step."""
    PENDING = "pending"
    """Known to be here or in a tier, and on its way into a row."""
    UNKNOWN = "unknown"
    """A tier that may have it has not answered yet."""
    ABSENT = "absent"
    """Not to be had: nowhere, lost on the way, or no row is free to bring it to."""


@dataclass(frozen=True, slots=True)
class PrefixLookup:
    """The answer to `OffloadingManager.lookup_prefix`.

    Attributes:
        num_ready: how many leading keys are READY.
        next_status: the status of the key behind them; ABSENT at the end of the keys.
    """

    num_ready: int
    next_status: LookupStatus

    @property
    def must_wait(self) -> bool:
        """Whether asking again in a later step can make the prefix longer."""
        return self.next_status in (LookupStatus.PENDING, LookupStatus.UNKNOWN)


class OffloadingManager(ABC):
    """Decides which chunks are kept, where, and when they move (seed, chapter 1.6)."""

    @abstractmethod
    def status(self, key: OffloadKey, req_context: ReqContext) -> LookupStatus:
        """Say where the chunk is, and start bringing it where it is only in a tier below."""

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        """`status` as True (READY), None (PENDING or UNKNOWN: ask again in a later step) or False (ABSENT)."""
        status = self.status(key, req_context)
        if status is LookupStatus.READY:
            return True
        return False if status is LookupStatus.ABSENT else None

    @abstractmethod
    def lookup_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        """`status` of each key up to the first ABSENT one, in one call."""

    @abstractmethod
    def prepare_load(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> CPULoadStoreSpec:
        """Pin the rows of READY chunks so that workers can copy from them; `complete_load` is owed for each.

        Returns:
            The rows, one per distinct key in the order given.

        Raises:
            KeysNotReadyError: some key is not READY; nothing was pinned. Cannot happen for keys that were READY in
                this step.
        """

    @abstractmethod
    def complete_load(self, keys: Iterable[OffloadKey], req_context: ReqContext | None = None) -> None:
        """Release what one `prepare_load` pinned. Keys that no load is open for are ignored and counted."""

    @abstractmethod
    def prepare_store(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Reserve rows for those chunks that have none; `complete_store` is owed for each key returned.

        Chunks of this call are never evicted to make room for it. Earlier keys outlive later ones.

        Returns:
            What to copy where, or None, with nothing changed, if there are not enough rows to be had now.
        """

    @abstractmethod
    def complete_store(
        self, keys: Iterable[OffloadKey], success: bool = True, req_context: ReqContext | None = None
    ) -> None:
        """End the stores of these chunks: readable from now on, or absent again. Others are ignored and counted."""

    @abstractmethod
    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Note that a request uses these chunks, in prefix order; the first becomes the most recent."""

    def on_new_request(self, req_context: ReqContext) -> None:
        """Note that a request begins. Calls for requests that were never announced work as well."""

    @abstractmethod
    def on_request_finished(self, req_context: ReqContext) -> None:
        """Note that a request has ended; its open loads and stores may still be completed later.

        Its chunks become recent, the first one most of all. Unknown and repeated requests are ignored.
        """

    @abstractmethod
    def on_schedule_end(self) -> None:
        """End the step: what the step has queued is handed over, what it was promised ends."""

    def has_pending_work(self) -> bool:
        """Whether further steps are needed to finish what was begun, even if no request is left."""
        return False

    @abstractmethod
    def reset_cache(self) -> None:
        """Forget all chunks at once, without waiting. Chunks in lower tiers stay.

        Copies under way end as if nothing had happened, but leave nothing behind. A key that is stored or loaded anew
        meanwhile then has several stores, or several loads, open: they are to be completed in the order in which they
        began.
        """

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Return what was stored and removed since the last call."""
        return ()

    def get_stats(self) -> Mapping[str, Any]:
        """Return counters and gauges, by name."""
        return {}

    def shutdown(self) -> None:
        """Give everything back. The last call."""
