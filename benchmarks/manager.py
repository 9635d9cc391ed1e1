"""The manager's decisions, per key, against one look into a dict of the same size."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.keys import OffloadKey, make_offload_key
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext

__all__ = ["measure"]

_OTHER = "dict.get"
_SAMPLE = 4096
_PROMPT = 512
_BATCH = 128


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure a full primary of each size, under each policy."""
    for num_rows in scale.num_rows:
        for policy in ("lru", "arc"):
            yield from _Bench(num_rows, policy).comparisons(scale.rounds)


class _Bench:
    def __init__(self, num_rows: int, policy: str) -> None:
        self._label = f"{policy}, {num_rows:,} rows"
        self._random = random.Random(1)
        self._keys = [self._new_key() for _ in range(num_rows)]
        self._manager = TieringOffloadingManager(CPUOffloadingManager(num_rows, policy))
        self._num_requests = 0
        for start in range(0, num_rows, 1000):
            self._store(self._keys[start : start + 1000])
        self._dict = {bytes(key): row for row, key in enumerate(self._keys)}

    def comparisons(self, rounds: int) -> Iterator[Comparison]:
        cases: list[tuple[str, Callable[[], float]]] = [
            ("lookup, hit", self._lookup_hits),
            ("lookup, miss", self._lookup_misses),
            (f"lookup_prefix of {_PROMPT}", self._lookup_prefix),
            (f"load and complete {_PROMPT}", self._load),
            (f"store {_BATCH}, evict {_BATCH}", self._store_batch),
            ("store 1, evict 1", self._store_singles),
        ]
        gc.collect()
        gc.freeze()  # a collection would walk over what the benchmark itself has made
        try:
            medians = alternate(rounds, self._dict_get, *(case for _, case in cases))
            pinned = self._keys[: len(self._keys) * 9 // 10]
            pinning = ReqContext("pins")
            # The stores before have evicted the first keys; they come back, and are then the last to go.
            self._store(pinned)
            self._manager.prepare_load(pinned, pinning)
            with_pins = alternate(rounds, self._dict_get, self._store_batch, self._store_singles)
            self._manager.complete_load(pinned, pinning)
        finally:
            gc.unfreeze()
        for (name, _), seconds in zip(cases, medians[1:], strict=True):
            yield Comparison.per_key(f"{self._label}: {name}", _OTHER, seconds, medians[0])
        for (name, _), seconds in zip(cases[-2:], with_pins[1:], strict=True):
            yield Comparison.per_key(f"{self._label}: {name}; 90 % pinned", _OTHER, seconds, with_pins[0])

    # Each of these returns seconds per key.

    def _dict_get(self) -> float:
        keys = self._sample(_SAMPLE)
        get = self._dict.get
        began = time.perf_counter()
        for key in keys:
            get(key)
        return (time.perf_counter() - began) / len(keys)

    def _lookup_hits(self) -> float:
        return self._look_up(self._sample(_SAMPLE), expected=True)

    def _lookup_misses(self) -> float:
        return self._look_up([self._new_key() for _ in range(_SAMPLE)], expected=False)

    def _look_up(self, keys: Sequence[OffloadKey], *, expected: bool) -> float:
        context = self._new_request()
        lookup = self._manager.lookup
        began = time.perf_counter()
        found = [lookup(key, context) for key in keys]
        seconds = time.perf_counter() - began
        check(found == [expected] * len(keys), f"lookup of keys that must be {expected}")
        self._end(context)
        return seconds / len(keys)

    def _lookup_prefix(self) -> float:
        keys, context = self._sample(_PROMPT), self._new_request()
        began = time.perf_counter()
        found = self._manager.lookup_prefix(keys, context)
        seconds = time.perf_counter() - began
        check(found.num_ready == len(keys), "lookup_prefix of keys that are there")
        self._end(context)
        return seconds / len(keys)

    def _load(self) -> float:
        keys, context = self._sample(_PROMPT), self._new_request()
        began = time.perf_counter()
        rows = self._manager.prepare_load(keys, context)
        self._manager.complete_load(keys, context)
        self._end(context)
        seconds = time.perf_counter() - began
        check(len(set(rows.block_ids.tolist())) == len(keys), "one row per key to load")
        return seconds / len(keys)

    def _store_batch(self) -> float:
        return self._store([self._new_key() for _ in range(_BATCH)])

    def _store_singles(self) -> float:
        return sum(self._store([self._new_key()]) for _ in range(_BATCH)) / _BATCH

    def _store(self, keys: Sequence[OffloadKey]) -> float:
        context = self._new_request()
        began = time.perf_counter()
        store = self._manager.prepare_store(keys, context)
        if store is not None:
            self._manager.complete_store(store.keys_to_store, True, context)
        self._end(context)
        seconds = time.perf_counter() - began
        check(store is not None, "rows for the keys to store")
        return seconds / len(keys)

    def _end(self, context: ReqContext) -> None:
        self._manager.on_request_finished(context)
        self._manager.on_schedule_end()

    def _sample(self, count: int) -> list[OffloadKey]:
        """Return keys that are there: of the last ones, which none of the stores reaches.

        As from an engine, they are equal to the stored ones, but not the same objects, and not hashed yet.
        """
        keys = self._random.sample(self._keys[-max(count, len(self._keys) // 10) :], count)
        return [OffloadKey(bytes(bytearray(key))) for key in keys]

    def _new_key(self) -> OffloadKey:
        return make_offload_key(self._random.randbytes(32), 0)

    def _new_request(self) -> ReqContext:
        self._num_requests += 1
        context = ReqContext(f"request-{self._num_requests}")
        self._manager.on_new_request(context)
        return context
