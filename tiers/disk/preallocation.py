"""Disk space for slots that will be wanted soon, got in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from tiers.disk.io_queue import IoQueue
from tiers.disk.root import Root
from tiers.disk.roots import Roots

__all__ = ["Preallocation"]


class Preallocation:
    """Grows slabs ahead of the slots in use, so that a store need not wait for it. Event loop thread only."""

    def __init__(self, roots: Roots, queue: IoQueue) -> None:
        self._roots = roots
        self._queue = queue
        self._growing: dict[tuple[Root, int], asyncio.Task[None]] = {}

    def follow(self, slots: Iterable[int]) -> None:
        """Note that ``slots``, in ascending order, are about to be written."""
        num_roots = len(self._roots)
        for idx, last_slot in {slot % num_roots: slot for slot in slots}.items():
            root, slot = self._roots[idx], self._roots.local(last_slot)
            place = (root, slot // root.slabs.slots_per_slab)
            if place not in self._growing and root.slabs.wants_growth(slot):
                self._growing[place] = asyncio.create_task(self._grow(place, slot))

    async def _grow(self, place: tuple[Root, int], slot: int) -> None:
        root, _ = place
        root.num_in_flight += 1
        try:
            # Where it fails, the store that needs the space fails too and says so.
            with suppress(OSError):
                await self._queue.read([partial(root.slabs.grow, slot)])
        finally:
            root.num_in_flight -= 1
            del self._growing[place]

    async def settled(self) -> None:
        """Wait until nothing grows."""
        while self._growing:
            await asyncio.wait(list(self._growing.values()))
