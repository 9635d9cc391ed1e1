"""A disk tier under test: rows, keys with bytes that belong to them, and back doors to what lies on disk."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np

from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.tier import TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.header import PAGE_BYTES
from tiers.disk.slot_io import slot_bytes_for
from tiers.disk.system_calls import SystemCalls
from tiers.disk.tier import DiskTier

ROW_BYTES = 8192


def key_of(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), group)


def keys_of(*numbers: int) -> list[OffloadKey]:
    return [key_of(number) for number in numbers]


def bytes_of(key: OffloadKey, row_bytes: int = ROW_BYTES) -> bytes:
    """Return the bytes that belong to a key, so that any mix-up shows."""
    return np.random.default_rng(list(key)).bytes(row_bytes)


def blank_rows(count: int, row_bytes: int = ROW_BYTES, offset: int = 0) -> list[memoryview]:
    """Return rows ``offset`` bytes behind page boundaries, with at least a page of zeros around each."""
    stride = PAGE_BYTES + slot_bytes_for(row_bytes)
    memory = memoryview(mmap.mmap(-1, stride * count + 2 * PAGE_BYTES))
    starts = range(PAGE_BYTES + offset, PAGE_BYTES + offset + stride * count, stride)
    return [memory[start : start + row_bytes] for start in starts]


def rows_for(keys: Sequence[OffloadKey], row_bytes: int = ROW_BYTES, offset: int = 0) -> list[memoryview]:
    rows = blank_rows(len(keys), row_bytes, offset)
    for key, row in zip(keys, rows, strict=True):
        row[:] = bytes_of(key, row_bytes)
    return rows


def assert_untouched_around(rows: list[memoryview]) -> None:
    """Clear rows made by `blank_rows`, and check that all memory around them is still zero."""
    for row in rows:
        row[:] = bytes(len(row))
    assert not any(np.frombuffer(row.obj, np.uint8).any() for row in rows[:1]), "a load wrote outside of its row"


def namespace(row_bytes: int = ROW_BYTES, model_name: str = "model") -> Namespace:
    return Namespace(model_name=model_name, row_bytes=row_bytes)


def run_on_default_threads(function: Callable[..., object], /, *args: object, **kwargs: object) -> Awaitable[object]:
    return asyncio.to_thread(function, *args, **kwargs)


class Clock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Disk:
    """Makes tiers over the same directories, one after another."""

    def __init__(self, root: Path, row_bytes: int = ROW_BYTES) -> None:
        self.root = root
        self.row_bytes = row_bytes
        self.clock = Clock()
        self.system = SystemCalls()
        self.evicted: list[OffloadKey] = []
        self.back: list[OffloadKey] = []
        self.corrupt: list[OffloadKey] = []

    @property
    def directory(self) -> Path:
        return self.root / namespace(self.row_bytes).fingerprint.hex()

    @property
    def slot_bytes(self) -> int:
        return slot_bytes_for(self.row_bytes)

    def make(
        self, num_slots: int = 8, *, model_name: str = "model", ours: Namespace | None = None, **settings: object
    ) -> DiskTier:
        """Make a tier of a namespace: ``ours``, or the usual one of a model."""
        settings = {"root_dirs": [self.root], "capacity": num_slots * self.slot_bytes} | settings
        config = DiskConfig.model_validate({"type": "disk"} | settings)
        context = TierContext(
            name="disk",
            row_bytes=self.row_bytes,
            namespace=ours or namespace(self.row_bytes, model_name),
            clock=self.clock,
            run_blocking=run_on_default_threads,
            report_evicted=self.evicted.extend,
            report_stored=self.back.extend,
            report_corrupt=self.corrupt.extend,
        )
        return DiskTier(config, context, self.system)

    @asynccontextmanager
    async def opened(self, num_slots: int = 8, **settings: object) -> Iterator[DiskTier]:
        tier = self.make(num_slots, **settings)
        await tier.open()
        try:
            yield tier
        finally:
            await tier.close()

    async def store(self, tier: DiskTier, *numbers: int) -> list[bool]:
        keys = keys_of(*numbers)
        return await tier.store(keys, rows_for(keys, self.row_bytes))

    async def load(self, tier: DiskTier, *numbers: int) -> list[bool]:
        """Load and compare the bytes of every True; canaries around the rows must live."""
        keys = keys_of(*numbers)
        rows = blank_rows(len(keys), self.row_bytes)
        answers = await tier.load(keys, rows)
        for key, row, answer in zip(keys, rows, answers, strict=True):
            assert not answer or row == bytes_of(key, self.row_bytes)
        assert_untouched_around(rows)
        return answers

    def slabs(self) -> list[Path]:
        return sorted(self.root.rglob("slab-*.kv"))

    def slab_bytes_on_disk(self) -> int:
        return sum(path.stat().st_blocks * 512 for path in self.slabs())

    def offset_of(self, number: int) -> int:
        """Return where the slot of a key begins in the only slab, found by its header alone."""
        data = self.slabs()[0].read_bytes()
        return data.index(key_of(number)) // self.slot_bytes * self.slot_bytes

    def overwrite(self, offset: int, data: bytes) -> None:
        with self.slabs()[0].open("r+b") as file:
            file.seek(offset)
            file.write(data)


async def present(tier: DiskTier) -> list[int]:
    """Return the numbers of all chunks in the index, the least recent first."""
    return [int.from_bytes(key[:32], "big") async for key in tier.keys()]  # noqa: SIM118


async def index_is_written(tier: DiskTier) -> None:
    """Wait until all journals have written, or failed to write, what was noted."""
    for root in tier._roots:
        if root.journal is not None:
            await root.journal.settled()


async def roots_are_checked(tier: DiskTier) -> None:
    """Try again what is due, and wait for these and all other checks of roots."""
    while attempts := tier._roots.revive():
        await asyncio.wait(attempts)
