"""Lookups: where a chunk is, asked in the primary tier first and then tier by tier.

A request that waits asks for its whole prefix again in every step, so the second asking is cheap: what a tier has
answered is remembered per request, and a key in a row costs one dict access. While it waits, its leading ready rows
are *held* (pinned), within a budget that only a single waiting request may exceed; one that could not hold them all
asks no tier any more and makes do with what is there. So requests never wait for one another's rows. Scheduler thread
only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from tiering.attached_tier import AttachedTier
from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus, PrefixLookup
from tiering.primary import CPUOffloadingManager
from tiering.promotion import Promotion
from tiering.request import ReqContext
from tiering.row_table import WRITING
from tiering.secondary_tier import TransferJob

__all__ = ["Lookups"]


class _Request:
    """What is remembered of one request between its lookups."""

    __slots__ = (
        "asked",
        "capped",
        "held",
        "load_tiers",
        "next_tier",
        "out_of_rows",
        "ready_rows",
        "sources",
        "waited",
        "waiting",
    )

    def __init__(self, load_tiers: frozenset[str] | None) -> None:
        self.load_tiers = load_tiers
        self.next_tier: dict[OffloadKey, int] = {}
        """Per key not in the primary, the first tier that has not said no."""
        self.sources: dict[OffloadKey, str] = {}
        """Per promoted key, the tier it came from."""
        self.held: dict[int, None] = {}
        """Rows pinned while the request waits."""
        self.ready_rows: list[int] = []
        """Rows found ready in this step."""
        self.asked = False
        """Whether it has asked in this step."""
        self.waiting = False
        """Whether some answer in this step was PENDING or UNKNOWN."""
        self.waited = False
        """Whether it was waiting when it last asked, and has not gone on since."""
        self.out_of_rows = False
        """Whether a promotion found no row in this step."""
        self.capped = False
        """Whether it waits no longer, because its ready rows could not all be held."""


class Lookups:
    """Answers lookups over the primary and all tiers.

    Attributes:
        num_held: rows pinned for requests that wait.
    """

    def __init__(
        self,
        primary: CPUOffloadingManager,
        tiers: Sequence[AttachedTier],
        promotion: Promotion,
        *,
        max_held: int,
        hold_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.num_held = 0
        self._primary = primary
        self._rows = primary.rows
        self._tiers = tiers
        self._promotion = promotion
        self._max_held = max_held
        self._hold_seconds = hold_seconds
        self._clock = clock
        self._requests: dict[str, _Request] = {}
        self._asked: dict[str, None] = {}  # once, also where an id has a new life within the step
        self._deadlines: OrderedDict[str, float] = OrderedDict()

    @property
    def num_requests(self) -> int:
        """Requests of which something is remembered."""
        return len(self._requests)

    def status(self, key: OffloadKey, req_context: ReqContext) -> LookupStatus:
        """See `OffloadingManager.status`."""
        return self._status(key, req_context, self._request(req_context))

    def lookup_prefix(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> PrefixLookup:
        """See `OffloadingManager.lookup_prefix`."""
        keys = list(keys)
        if not keys:
            return PrefixLookup(0, LookupStatus.ABSENT)
        request = self._request(req_context)
        ready = self._primary.lease_ready_prefix(keys)
        request.ready_rows += ready
        next_status = LookupStatus.ABSENT
        for position in range(len(ready), len(keys)):
            status = self._status(keys[position], req_context, request)
            if position == len(ready):
                next_status = status
            if status is LookupStatus.ABSENT:
                break
        return PrefixLookup(len(ready), next_status)

    def source(self, key: OffloadKey, req_context: ReqContext) -> str | None:
        """Name the tier that ``key`` was promoted from for this request; None if it was in a row already."""
        request = self._requests.get(req_context.req_id)
        return request.sources.get(key) if request is not None else None

    def promoted(
        self, tier: AttachedTier, job: TransferJob, succeeded: Sequence[bool], rows: Sequence[int] = ()
    ) -> None:
        """Hold the rows that have come in for a request that waits; go past the tier that failed to deliver."""
        request = self._requests.get(job.req_id)
        if request is None:
            return
        for key, done in zip(job.keys, succeeded, strict=True):
            if not done and self._is_from(tier, key, request):
                request.next_tier[key] += 1
                request.sources.pop(key, None)
        if request.waited:
            self._hold(job.req_id, request, rows)

    def hedge(self, tier: AttachedTier, job: TransferJob) -> None:
        """Begin the chunks of a slow load again, from the next tier that is known to have them."""
        request = self._requests.get(job.req_id)
        if request is None:
            return
        for key, row in zip(job.keys, job.rows, strict=True):
            if not self._is_from(tier, key, request):
                continue
            for number in range(request.next_tier[key] + 1, len(self._tiers)):
                other = self._tiers[number]
                if request.load_tiers is not None and not other.matches(request.load_tiers):
                    continue
                if other.lookup(key, ReqContext(job.req_id)) and self._promotion.hedge(key, row, other, job.req_id):
                    request.next_tier[key] = number
                    request.sources[key] = other.name
                    break

    def _is_from(self, tier: AttachedTier, key: OffloadKey, request: _Request) -> bool:
        number = request.next_tier.get(key, len(self._tiers))
        return number < len(self._tiers) and self._tiers[number] is tier

    def stored(self, keys: Iterable[OffloadKey], req_context: ReqContext) -> None:
        """The request stores these chunks itself: what the tiers said of them no longer holds."""
        request = self._requests.get(req_context.req_id)
        if request is not None and request.next_tier:
            for key in keys:
                request.next_tier.pop(key, None)

    def end_step(self) -> None:
        """Hold the ready rows of requests that wait; release those of requests that have not come back in time."""
        for req_id in self._asked:
            request = self._requests.get(req_id)
            if request is None:
                continue
            if request.waiting and req_id:
                self._hold(req_id, request, request.ready_rows)
            request.ready_rows.clear()
            request.waited = request.waiting
            request.asked = request.waiting = request.out_of_rows = False
        self._asked.clear()
        self._requests.pop("", None)
        if self._deadlines:
            now = self._clock()
            while self._deadlines and next(iter(self._deadlines.values())) <= now:
                self.release(next(iter(self._deadlines)))

    def release(self, req_id: str) -> None:
        """Unpin what is held for a request: it goes on now, has ended, or was not seen for too long."""
        self._deadlines.pop(req_id, None)
        request = self._requests.get(req_id)
        if request is None:
            return
        request.capped = request.waited = request.waiting = False
        if request.held:
            self.num_held -= len(request.held)
            self._rows.unpin(request.held)
            request.held.clear()

    def finish(self, req_context: ReqContext) -> None:
        """Forget a request."""
        self.release(req_context.req_id)
        self._requests.pop(req_context.req_id, None)

    def reset(self) -> None:
        """Release everything and ask all tiers anew."""
        for req_id in list(self._deadlines):
            self.release(req_id)
        for request in self._requests.values():
            request.next_tier.clear()
            request.sources.clear()
            request.ready_rows.clear()
            request.capped = False

    def _request(self, req_context: ReqContext) -> _Request:
        req_id = req_context.req_id
        request = self._requests.get(req_id)
        if request is None:
            request = self._requests[req_id] = _Request(req_context.load_tiers)
        if not request.asked:
            request.asked = True
            self._asked[req_id] = None
            if request.held:
                self._deadlines[req_id] = self._clock() + self._hold_seconds
                self._deadlines.move_to_end(req_id)
        return request

    def _status(self, key: OffloadKey, req_context: ReqContext, request: _Request) -> LookupStatus:
        row = self._rows.index.get(key)
        if row is None:
            return self._ask_tiers(key, req_context, request)
        if self._rows.table.ref_cnt[row] == WRITING:
            request.waiting = True
            return LookupStatus.PENDING
        self._rows.lease(row)
        request.ready_rows.append(row)
        return LookupStatus.READY

    def _ask_tiers(self, key: OffloadKey, req_context: ReqContext, request: _Request) -> LookupStatus:
        if request.capped or request.out_of_rows:
            return LookupStatus.ABSENT
        for number in range(request.next_tier.get(key, 0), len(self._tiers)):
            request.next_tier[key] = number
            tier = self._tiers[number]
            if request.load_tiers is not None and not tier.matches(request.load_tiers):
                continue
            present = tier.lookup(key, req_context)
            if present is None:
                request.waiting = True
                return LookupStatus.UNKNOWN
            if present:
                if not self._promotion.queue(key, tier, req_context.req_id):
                    request.out_of_rows = True
                    return LookupStatus.ABSENT
                request.sources[key] = tier.name
                request.waiting = True
                return LookupStatus.PENDING
        request.next_tier[key] = len(self._tiers)
        return LookupStatus.ABSENT

    def _hold(self, req_id: str, request: _Request, rows: Iterable[int]) -> None:
        new = [row for row in dict.fromkeys(rows) if row not in request.held]
        is_only_holder = self.num_held == len(request.held)
        room = (self._rows.table.num_rows if is_only_holder else self._max_held) - self.num_held
        if len(new) > room:
            request.capped = True
            del new[max(0, room) :]
        if new:
            self._rows.pin(new)
            request.held.update(dict.fromkeys(new))
            self.num_held += len(new)
            self._deadlines[req_id] = self._clock() + self._hold_seconds
            self._deadlines.move_to_end(req_id)
