"""What the disk tier's index costs: one membership test, and a restart with as many chunks as the manager has rows."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.tier import TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.index_columns import IndexColumns
from tiers.disk.index_files import encode_snapshot, snapshot_path
from tiers.disk.root import Root
from tiers.disk.slot_io import slot_bytes_for
from tiers.disk.system_calls import SystemCalls
from tiers.disk.tier import DiskTier

__all__ = ["measure"]

_ROW_BYTES = 4096
_ROUNDS = 3
_QUESTIONS = 100_000


def measure(directory: Path, scale: Scale) -> Iterator[Comparison]:
    """Restart on an index of the largest number of chunks, and ask that tier for some of them."""
    num_chunks = max(scale.num_rows)
    keys = [make_offload_key(number.to_bytes(32, "big"), 0) for number in range(num_chunks)]
    context = TierContext(
        name="disk",
        row_bytes=_ROW_BYTES,
        namespace=Namespace("benchmark", row_bytes=_ROW_BYTES),
        clock=time.monotonic,
        run_blocking=asyncio.to_thread,
        report_evicted=lambda keys: None,
    )
    config = DiskConfig(type="disk", root_dirs=(directory,), capacity=num_chunks * slot_bytes_for(_ROW_BYTES))
    snapshot = _leave_behind(keys, config, context)
    restart, copy = alternate(_ROUNDS, partial(_restart, config, context, num_chunks), partial(_copy, snapshot))
    yield Comparison(
        f"restart with {num_chunks:,} chunks", "its index file, copied", "s", restart, copy, restart / copy
    )
    yield asyncio.run(_contains(keys, config, context))


def _leave_behind(keys: list[OffloadKey], config: DiskConfig, context: TierContext) -> Path:
    """Make a directory as a tier full of chunks leaves it, except that the slabs take no disk space."""
    root = Root(0, len(keys), slot_bytes_for(_ROW_BYTES), config, context)
    root.open(SystemCalls(), "none")
    try:
        slots = np.random.default_rng(1).permutation(len(keys)).astype(np.uint64)
        ages = np.arange(1, len(keys) + 1, dtype=np.uint64)
        path = snapshot_path(root.directory)
        path.write_bytes(encode_snapshot(root.identity, 1, IndexColumns(keys, slots, ages, ages)))
        for slab, first_slot in enumerate(range(0, len(keys), root.slabs.slots_per_slab)):
            num_slots = min(root.slabs.slots_per_slab, len(keys) - first_slot)
            with (root.directory / f"slab-{slab:06d}.kv").open("wb") as file:
                file.truncate(num_slots * slot_bytes_for(_ROW_BYTES))
    finally:
        root.close()
    return path


def _restart(config: DiskConfig, context: TierContext, num_chunks: int) -> float:
    async def restart() -> float:
        tier = DiskTier(config, context)
        began = time.perf_counter()
        await tier.open()
        seconds = time.perf_counter() - began
        found = await tier.usage()
        await tier.close()
        check(found.num_chunks == num_chunks, "every chunk of the index")
        return seconds

    return asyncio.run(restart())


def _copy(snapshot: Path) -> float:
    target = snapshot.with_name("copy")
    began = time.perf_counter()
    target.write_bytes(snapshot.read_bytes())
    seconds = time.perf_counter() - began
    os.unlink(target)
    return seconds


async def _contains(keys: list[OffloadKey], config: DiskConfig, context: TierContext) -> Comparison:
    tier = DiskTier(config, context)
    await tier.open()
    plain = dict.fromkeys(keys)
    draw = np.random.default_rng(2)

    def ask(question: Callable[[OffloadKey], bool]) -> float:
        # Equal to keys in the index, but other objects, as an engine would have them.
        asked = [OffloadKey(bytes(bytearray(keys[place]))) for place in draw.integers(len(keys), size=_QUESTIONS)]
        began = time.perf_counter()
        deque(map(question, asked), maxlen=0)
        return (time.perf_counter() - began) / _QUESTIONS

    ours, others = alternate(_ROUNDS, partial(ask, tier.contains), partial(ask, plain.__contains__))
    await tier.close()
    return Comparison.per_key(f"contains, of {len(keys):,} chunks", "in a dict", ours, others)
