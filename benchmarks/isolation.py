"""What the scheduler's calls cost while a tier works: the tier in a process of its own, against the tier on a thread.

The same engine over two managers, in turn. In each step it looks up a prompt that is in rows, stores a chunk, and keeps
sixteen promotions under way; then it leaves the interpreter to others for a millisecond, as an engine does that waits
for its device.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.comparison import Comparison, Scale, check
from tiering.build import open_secondary_tiers
from tiering.config import TieringConfig
from tiering.config_file import parse_config
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.request import ReqContext
from tiering.testing import drain, fill_row, row_matches

__all__ = ["measure"]

_ROW_BYTES = 128 * 2**10
_NUM_ROWS = 256
_PROMPT = 64
_LOADS = 16
_CHUNKS_PER_LOAD = 4
_STORED = 512
_MAX_WAIT_SECONDS = 60.0
_WAIT_SECONDS = 0.001
_CALLS = (f"lookup_prefix of {_PROMPT}", "complete_store", "on_schedule_end")


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure a tier whose threads mostly wait, the object tier over files, and a tier that works in Python."""
    num_steps = scale.moved_bytes // 2**20
    sys.path.append(str(Path(__file__).parent / "busy_tier"))
    for tier in ("disk", "fsspec", "busy"):
        directory = Path(tempfile.mkdtemp(prefix="tiering-benchmark-", dir=scale.directory))
        try:
            yield from _compare(tier, directory, scale.rounds, num_steps)
        finally:
            shutil.rmtree(directory)


def _compare(tier: str, directory: Path, rounds: int, num_steps: int) -> Iterator[Comparison]:
    with ExitStack() as stack:
        sides = []
        for isolation in ("process", "thread"):
            sides.append(_Engine(isolation, _config(tier, directory / isolation, isolation)))
            stack.callback(sides[-1].manager.shutdown)
        measured = [[side.run(num_steps) for side in sides] for _ in range(1 + rounds)][1:]
    for call, percentile in itertools.product(_CALLS, (50, 99)):
        ours, other = (
            float(np.percentile([seconds for taken in measured for seconds in taken[side].seconds[call]], percentile))
            for side in (0, 1)
        )
        yield Comparison(f"{tier}: {call}, p{percentile}", "on a thread", "us", ours * 1e6, other * 1e6, ours / other)
    ours, other = (median(taken[side].chunks_per_second for taken in measured) for side in (0, 1))
    yield Comparison(f"{tier}: loads meanwhile", "on a thread", "chunks/s", ours, other, other / ours)


def _config(tier: str, directory: Path, isolation: str) -> TieringConfig:
    settings: dict[str, dict[str, Any]] = {
        "disk": {"root_dirs": [str(directory)], "capacity": 4 * _STORED * _ROW_BYTES},
        "fsspec": {"url": directory.as_uri()},
        "busy": {"max_chunks": 4 * _STORED},
    }
    tiers = [{"type": tier, "isolation": isolation, **settings[tier]}]
    return parse_config({"cpu_bytes_to_use": _NUM_ROWS * _ROW_BYTES, "secondary_tier_configs": tiers}, environ={})


@dataclass(slots=True)
class _Round:
    """What one engine has measured in a number of steps.

    Attributes:
        seconds: durations of each call.
        chunks_per_second: chunks that came back from the tier.
    """

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    chunks_per_second: float = 0.0

    def note(self, call: str, began: float) -> None:
        self.seconds[call].append(time.perf_counter() - began)


class _Engine:
    """A manager over a region, its tier full of chunks, and a prompt in its rows.

    Attributes:
        manager: to be shut down.
    """

    def __init__(self, name: str, config: TieringConfig) -> None:
        layout = RegionLayout(_NUM_ROWS, 1, _ROW_BYTES)
        region = SharedOffloadRegion(f"benchmark-{name}-{id(self)}", layout.total_bytes, _NUM_ROWS, None, 1, _ROW_BYTES)
        with ExitStack() as undo:
            undo.callback(region.cleanup)
            tiers = open_secondary_tiers(config, Namespace("benchmark", row_bytes=_ROW_BYTES), region)
            primary = CPUPrimaryTierOffloadingManager(_NUM_ROWS, "lru", False, mmap_region=region)
            undo.pop_all()
        region.unlink()
        self.manager = TieringOffloadingManager(primary, tiers, row_bytes=_ROW_BYTES)
        self._row_views = region.row_views
        self._numbers = itertools.count()
        self._prompt = [self._new_key() for _ in range(_PROMPT)]
        self._stored = deque(self._new_key() for _ in range(_STORED))
        for begin in range(0, _STORED, _CHUNKS_PER_LOAD):
            self._store(list(itertools.islice(self._stored, begin, begin + _CHUNKS_PER_LOAD)), _Round())
            drain(self.manager)
        self._store(self._prompt, _Round())
        drain(self.manager)
        self._waiting: list[tuple[ReqContext, list[OffloadKey]]] = []

    def run(self, num_steps: int) -> _Round:
        """Make steps, and end with nothing under way."""
        taken = _Round()
        num_loaded = 0
        began = time.perf_counter()
        steps = itertools.count(1)
        # On a busy machine a few steps may be over before the first chunk is there.
        while next(steps) <= num_steps or (num_loaded == 0 and time.perf_counter() < began + _MAX_WAIT_SECONDS):
            self._look_up_prompt(taken)
            self._store([self._new_key()], taken)
            num_loaded += self._take_up_loads()
            self._begin_loads()
            self._end_step(taken)
            time.sleep(_WAIT_SECONDS)
        taken.chunks_per_second = num_loaded / (time.perf_counter() - began)
        while self._waiting:
            drain(self.manager)
            self._take_up_loads()
        check(num_loaded > 0, "chunks that come back from the tier")
        return taken

    def _look_up_prompt(self, taken: _Round) -> None:
        context = self._new_request()
        began = time.perf_counter()
        found = self.manager.lookup_prefix(self._prompt, context)
        taken.note(_CALLS[0], began)
        check(found.num_ready == _PROMPT, "the prompt in rows")
        self.manager.prepare_load(self._prompt, context)
        self.manager.complete_load(self._prompt, context)
        self.manager.on_request_finished(context)

    def _store(self, keys: list[OffloadKey], taken: _Round) -> None:
        context = self._new_request()
        store = self.manager.prepare_store(keys, context)
        if store is not None:  # on a busy machine the rows may all be pinned for a moment
            for key, row in zip(keys, self._row_views(store.store_spec.block_ids.tolist()), strict=True):
                fill_row(row, key)
            began = time.perf_counter()
            self.manager.complete_store(keys, True, context)
            taken.note(_CALLS[1], began)
        self.manager.on_request_finished(context)

    def _begin_loads(self) -> None:
        while len(self._waiting) < _LOADS:
            # The first ones are long out of the rows when their turn comes again.
            keys = [self._stored[place] for place in range(_CHUNKS_PER_LOAD)]
            self._stored.rotate(-_CHUNKS_PER_LOAD)
            context = self._new_request()
            self.manager.lookup_prefix(keys, context)
            self._waiting.append((context, keys))

    def _take_up_loads(self) -> int:
        """Take up the loads that have ended, comparing bytes; returns of how many chunks."""
        still_waiting, num_loaded = [], 0
        for context, keys in self._waiting:
            found = self.manager.lookup_prefix(keys, context)
            if found.must_wait:
                still_waiting.append((context, keys))
                continue
            loaded = keys[: found.num_ready]
            rows = self.manager.prepare_load(loaded, context).block_ids.tolist()
            check(all(map(row_matches, self._row_views(rows), loaded)), "the bytes of chunks from the tier")
            self.manager.complete_load(loaded, context)
            self.manager.on_request_finished(context)
            num_loaded += len(loaded)
        self._waiting = still_waiting
        return num_loaded

    def _end_step(self, taken: _Round) -> None:
        began = time.perf_counter()
        self.manager.on_schedule_end()
        taken.note(_CALLS[2], began)

    def _new_key(self) -> OffloadKey:
        return make_offload_key(b"isolation" + next(self._numbers).to_bytes(8, "big"), 0)

    def _new_request(self) -> ReqContext:
        return ReqContext(f"request-{next(self._numbers)}")
