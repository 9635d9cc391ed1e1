"""Many short requests, with aborts and failures: nothing that is remembered may grow."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from tiering.errors import TierError
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.questions import Questions
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult
from tiering.testing import NotQuiescentError, ScriptedTier, check_quiescent, container_sizes, drain

__all__ = ["play_short_requests"]

_NUM_ROWS = 64
_NUM_CHUNKS = 400
_IN_A_TIER = 200
_ABORTED = _FAILED = _VERY_LATE = 0.05
_UNNAMED = _NEVER_SEEN_BEFORE = 0.2
_STEPS_WHEN_VERY_LATE = 300
_SECONDS_PER_REQUEST = 0.01


class _LateTier(ScriptedTier):
    """Answers what it is asked one step later, and now and then much later."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__("two", enable_events=True)
        self._draw = draw
        self._questions = Questions()
        self._asked: list[tuple[int, int, tuple[OffloadKey, ...]]] = []
        self._num_steps = 0

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> bool | None:
        answer = self._questions.answer(key, req_context.req_id)
        if isinstance(answer, str):
            raise TierError(answer)
        return answer

    def on_request_finished(self, req_context: ReqContext) -> None:
        self._questions.forget(req_context.req_id)

    def on_schedule_end(self) -> None:
        self._num_steps += 1
        batch, keys = self._questions.take_unasked()
        if keys:
            steps = _STEPS_WHEN_VERY_LATE if self._draw.random() < _VERY_LATE else 0
            self._asked.append((self._num_steps + steps, batch, keys))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        self.answer_until(self._num_steps)
        return super().get_finished_jobs()

    def answer_until(self, step: float) -> None:
        """Answer what is to be answered until that step."""
        for due, batch, keys in self._asked:
            if due <= step:
                self._questions.settle_batch(batch, {key: key in self.objects for key in keys})
        self._asked = [asked for asked in self._asked if asked[0] > step]

    def has_pending_work(self) -> bool:
        return bool(self._asked) or super().has_pending_work()


def play_short_requests(num_requests: int) -> list[str]:
    """Serve them; return what has grown between the first half and the second, or is left over."""
    draw = random.Random(num_requests)
    tiers = [ScriptedTier("one", enable_events=True), _LateTier(draw)]
    primary = CPUOffloadingManager(_NUM_ROWS, "arc", enable_events=True)
    number = 0
    clock = lambda: number * _SECONDS_PER_REQUEST  # noqa: E731
    manager = TieringOffloadingManager(primary, tiers, promotion_limit=1.0, clock=clock)
    measured: list[dict[str, int]] = []
    memory: list[int] = []
    for number in range(num_requests):
        _serve(manager, tiers, ReqContext(f"request {number}" if draw.random() > _UNNAMED else ""), draw)
        for tier in tiers:
            tier.calls.clear()
            tier.evict(*list(tier.objects)[_IN_A_TIER:])
        if number % 500 == 0:
            manager.take_events()
        if number + 1 in (num_requests // 2, num_requests):
            for tier in tiers:
                tier.finish_all()
                if isinstance(tier, _LateTier):
                    tier.answer_until(math.inf)
            drain(manager)
            manager.take_events()
            measured.append(container_sizes(manager, "benchmarks"))
            memory.append(_data_bytes())
    problems = [
        f"{path} has {size} entries, {measured[0].get(path, 0)} before"
        for path, size in measured[1].items()
        if size > max(measured[0].get(path, 0), 2 * _IN_A_TIER)
    ]
    if memory[1] > 1.05 * memory[0]:
        problems.append(f"memory grew from {memory[0]} to {memory[1]} bytes over {num_requests // 2} requests")
    try:
        check_quiescent(manager, _NUM_ROWS)
    except NotQuiescentError as error:
        problems.append(str(error))
    return problems


def _serve(
    manager: TieringOffloadingManager, tiers: Sequence[ScriptedTier], request: ReqContext, draw: random.Random
) -> None:
    start = draw.randrange(2**60 if draw.random() < _NEVER_SEEN_BEFORE else _NUM_CHUNKS)
    keys = [_key(number) for number in range(start, start + draw.randint(1, 6))]
    for _ in range(3):
        found = manager.lookup_prefix(keys, request)
        if not found.must_wait or draw.random() < _ABORTED:
            break
        manager.on_schedule_end()
        for tier in tiers:
            while tier.jobs:
                tier.finish(succeeded=draw.random() > _FAILED)
    if draw.random() > _ABORTED:
        manager.prepare_load(keys[: found.num_ready], request)
        store = manager.prepare_store(keys, request)
        manager.complete_load(keys[: found.num_ready])
        if store is not None:
            manager.complete_store(store.keys_to_store, success=draw.random() > _FAILED)
    if request.req_id:
        manager.on_request_finished(request)
    manager.on_schedule_end()


def _key(number: int) -> OffloadKey:
    return make_offload_key(number.to_bytes(8, "big"), 0)


def _data_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
