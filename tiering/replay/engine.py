"""A serving engine in small: takes requests from a trace through lookup, load, compute and store.

It calls the manager as a real scheduler does: a step looks up, prepares and completes for each running request, then
ends; copies run meanwhile; a request that has to wait for promotions asks again in the next step.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from tiering.keys import OffloadKey
from tiering.manager import TieringOffloadingManager
from tiering.replay.device import Device, DeviceJobResult
from tiering.replay.trace import TraceRequest
from tiering.request import ReqContext

__all__ = ["Counts", "ReplayEngine"]

_IDLE_SECONDS = 0.0002


@dataclass(slots=True)
class Counts:
    """What a replay has counted.

    Attributes:
        requests, accesses: requests served and blocks in their prompts.
        prefix_hits: leading blocks of each request that were loaded instead of computed.
        hits: the same, by the tier they came from.
        mismatches: loaded chunks with a wrong byte.
        failed_copies: copies between device and rows that failed.
        stores_refused: requests whose new blocks found no rows.
        lookup_seconds: duration of each lookup call.
    """

    requests: int = 0
    accesses: int = 0
    prefix_hits: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    mismatches: int = 0
    failed_copies: int = 0
    stores_refused: int = 0
    lookup_seconds: list[float] = field(default_factory=list)


class _State(Enum):
    LOOKING_UP = auto()
    LOADING = auto()
    COMPUTED = auto()
    STORING = auto()
    DONE = auto()


@dataclass(slots=True)
class _Running:
    context: ReqContext
    keys: list[OffloadKey]
    stretch: range
    state: _State = _State.LOOKING_UP
    num_loaded: int = 0
    storing: list[OffloadKey] = field(default_factory=list)


class ReplayEngine:
    """Serves a trace with up to ``concurrency`` requests at a time.

    Attributes:
        counts: what was counted so far.
    """

    def __init__(
        self,
        manager: TieringOffloadingManager,
        device: Device,
        *,
        concurrency: int,
        max_prompt_blocks: int,
        num_groups: int = 1,
    ) -> None:
        self.counts = Counts()
        self._manager = manager
        self._device = device
        self._concurrency = concurrency
        self._num_groups = num_groups
        # Each running request has a stretch of the device of its own, as long as the longest prompt.
        self._stretches = deque(
            range(number * max_prompt_blocks, (number + 1) * max_prompt_blocks) for number in range(concurrency)
        )
        self._running: list[_Running] = []
        self._jobs: dict[int, _Running] = {}
        self._num_jobs = 0

    def run(self, requests: Iterable[TraceRequest], on_finished: Callable[[], None] = lambda: None) -> None:
        """Serve all requests, then step until nothing is pending. ``on_finished`` is called once per request."""
        source = iter(requests)
        while self._admit(source):
            progressed = [self._advance(request) for request in self._running]
            self._manager.on_schedule_end()
            self._collect(0.0 if any(progressed) else _IDLE_SECONDS)
            for request in [request for request in self._running if request.state is _State.DONE]:
                self._running.remove(request)
                self._stretches.append(request.stretch)
                on_finished()
            if self._concurrency == 1 and not self._running:
                self.settle()  # one request at a time means: with nothing left over from the one before
        self.settle()

    def settle(self) -> None:
        """Step until no work is pending."""
        while self._manager.has_pending_work():
            self._collect(_IDLE_SECONDS)
            self._manager.on_schedule_end()

    def _admit(self, source: Iterator[TraceRequest]) -> bool:
        while len(self._running) < self._concurrency:
            request = next(source, None)
            if request is None:
                break
            context = ReqContext(f"request-{self.counts.requests}")
            self.counts.requests += 1
            keys = request.offload_keys(self._num_groups)
            self.counts.accesses += len(keys)
            self._manager.on_new_request(context)
            self._running.append(_Running(context, keys, self._stretches.popleft()))
        return bool(self._running)

    def _advance(self, request: _Running) -> bool:
        """Do what the request can do in this step; whether that was anything."""
        if request.state is _State.LOOKING_UP:
            return self._look_up(request)
        if request.state is _State.COMPUTED:
            self._store(request)
            return True
        return False

    def _look_up(self, request: _Running) -> bool:
        began = time.perf_counter()
        found = self._manager.lookup_prefix(request.keys, request.context)
        self.counts.lookup_seconds.append(time.perf_counter() - began)
        if found.must_wait:
            return False
        # A block whose chunk is missing in one group must be computed for all of them.
        request.num_loaded = found.num_ready - found.num_ready % self._num_groups
        self.counts.prefix_hits += request.num_loaded
        keys = request.keys[: request.num_loaded]
        self.counts.hits.update(self._manager.get_load_source(key, request.context) for key in keys)
        if not keys:
            self._store(request)
            return True
        rows = self._manager.prepare_load(keys, request.context)
        request.state = _State.LOADING
        self._device.load(self._new_job(request), keys, self._places(request, keys), rows)
        return True

    def _store(self, request: _Running) -> None:
        # The whole prompt, as engines offer it: so its loaded head is not evicted to make room for its tail.
        store = self._manager.prepare_store(request.keys, request.context)
        if store is None:
            self.counts.stores_refused += 1
        if store is None or not store.keys_to_store:
            self._finish(request)
            return
        request.storing = store.keys_to_store
        request.state = _State.STORING
        places = self._places(request, store.keys_to_store)
        self._device.store(self._new_job(request), store.keys_to_store, places, store.store_spec)

    def _places(self, request: _Running, keys: list[OffloadKey]) -> list[int]:
        """Return where each chunk lies on the device: one place per block, since each group has its own tensors."""
        place_of = {key: request.stretch[number // self._num_groups] for number, key in enumerate(request.keys)}
        return [place_of[key] for key in keys]

    def _collect(self, timeout_seconds: float) -> None:
        if not self._jobs and timeout_seconds:
            time.sleep(timeout_seconds)  # all wait for tiers, whose threads need this one's interpreter lock
        for result in self._device.poll(timeout_seconds if self._jobs else 0.0):
            self._end(self._jobs.pop(result.job_id), result)

    def _end(self, request: _Running, result: DeviceJobResult) -> None:
        self.counts.mismatches += result.mismatches
        self.counts.failed_copies += not result.success
        if request.state is _State.LOADING:
            self._manager.complete_load(request.keys[: request.num_loaded], request.context)
            request.state = _State.COMPUTED
        else:
            self._manager.complete_store(request.storing, result.success, request.context)
            self._finish(request)

    def _finish(self, request: _Running) -> None:
        self._manager.on_request_finished(request.context)
        request.state = _State.DONE

    def _new_job(self, request: _Running) -> int:
        self._num_jobs += 1
        self._jobs[self._num_jobs] = request
        return self._num_jobs
