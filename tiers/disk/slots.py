"""Which chunk is in which slot, which slots are free, and which chunk goes next."""

from __future__ import annotations

import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from tiering.keys import OffloadKey
from tiers.disk.eviction import EvictionRule, LeastRecentlyUsed
from tiers.disk.index_columns import FrozenTable, IndexColumns

__all__ = ["IndexEntry", "SlotTable"]


def _wall_microseconds() -> int:
    return time.time_ns() // 1000


class IndexEntry(NamedTuple):
    """One stored chunk."""

    key: OffloadKey
    slot: int
    generation: int


class SlotTable:
    """The index of a disk tier in memory: key to slot, the next victim first. It decides; it does no I/O.

    A slot is in one of four states: in the index, free, taken (handed out for a write, until `insert` or
    `give_back`), or retired. A pinned slot is never handed out, not even after its chunk was discarded.
    All methods but ``in`` run on the event loop thread; ``in`` may run on any.

    Attributes:
        present: the keys of all chunks, at every moment; for membership tests, which may run on any thread.
    """

    def __init__(
        self,
        num_slots: int,
        num_roots: int = 1,
        eviction: type[EvictionRule] = LeastRecentlyUsed,
        wall_microseconds: Callable[[], int] = _wall_microseconds,
    ) -> None:
        """Begin empty; slot ``s`` lies in root ``s % num_roots``."""
        self.num_slots = num_slots
        self._num_roots = num_roots
        self._wall_microseconds = wall_microseconds
        self._last_tick = 0
        self._slot_of: OrderedDict[OffloadKey, int] = OrderedDict()
        self.present: Set[OffloadKey] = self._slot_of.keys()
        self._eviction = eviction(self._slot_of, self._move_to_end)
        # By slot, so that a snapshot can be taken without a walk through the index; 0 and None where there is no chunk.
        self._key_at = np.full(num_slots, None, np.object_)
        self._generations = array("Q", bytes(8 * num_slots))
        self._recency = array("Q", bytes(8 * num_slots))
        self._free: list[deque[int]] = [deque() for _ in range(num_roots)]
        # Per root a heap of slots that may have no disk space yet. A slab grows from the front, so the lowest goes
        # first; slots never used are represented by the first of them.
        self._unbacked = [[root] for root in range(num_roots)]
        self._first_unused = list(range(num_roots))
        self._pins: dict[int, int] = {}
        self._discarded_while_pinned: set[int] = set()
        self._lost_roots: set[int] = set()

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self._slot_of

    def __len__(self) -> int:
        return len(self._slot_of)

    def entry(self, key: OffloadKey) -> IndexEntry | None:
        """Return what the index says about a chunk, or None if it is absent."""
        slot = self._slot_of.get(key)
        return None if slot is None else IndexEntry(key, slot, self._generations[slot])

    def entries(self, root: int) -> Iterator[IndexEntry]:
        """Yield the chunks of one root, the next victim first."""
        for key, slot in self._slot_of.items():
            if slot % self._num_roots == root:
                yield IndexEntry(key, slot, self._generations[slot])

    def keys(self) -> list[OffloadKey]:
        """Return the keys of all chunks, the next victim first."""
        return list(self._slot_of)

    def freeze(self, root: int) -> FrozenTable:
        """Return the chunks of one root as they are now."""
        return FrozenTable(
            self._key_at[root :: self._num_roots].copy(),
            np.array(self._generations, np.uint64)[root :: self._num_roots],
            np.array(self._recency, np.uint64)[root :: self._num_roots],
        )

    def restore(self, root: int, found: IndexColumns) -> None:
        """Begin a root anew with chunks of distinct slots, the next victim first; they go before all that is here.

        Of two chunks with one key the newer one is kept.
        """
        self._lost_roots.discard(root)
        slots = (found.slots * np.uint64(self._num_roots) + np.uint64(root)).astype(np.intp)
        np.frombuffer(self._generations, np.uint64)[slots] = found.generations
        np.frombuffer(self._recency, np.uint64)[slots] = np.maximum(found.recency, np.uint64(1))
        for numbers in (found.generations, found.recency):
            self._last_tick = max(self._last_tick, int(numbers.max(initial=0)))
        self._key_at[slots] = np.array(found.keys, np.object_)
        if self._slot_of:
            self._put_before(dict(zip(found.keys, slots.tolist(), strict=True)), found)
        else:
            self._slot_of.update(zip(found.keys, slots.tolist(), strict=True))
        self._restore_free(root)

    def _put_before(self, kept: dict[OffloadKey, int], found: IndexColumns) -> None:
        """Put chunks into the index before all that are there, and of two with one key remove the older one."""
        generations = dict(zip(found.keys, found.generations.tolist(), strict=True))
        for key in [key for key in kept if key in self._slot_of]:
            if generations[key] > self._generations[self._slot_of[key]]:
                self.discard(key)
            else:
                self._vacate(kept.pop(key))
        for key, slot in reversed(kept.items()):
            self._slot_of[key] = slot
            self._slot_of.move_to_end(key, last=False)

    def _restore_free(self, root: int) -> None:
        used = np.flatnonzero(np.frombuffer(self._recency, np.uint64)[root :: self._num_roots])
        first_unused = int(used[-1]) + 1 if len(used) else 0
        is_free = np.ones(first_unused, np.bool_)
        is_free[used] = False
        self._free[root] = deque((np.flatnonzero(is_free) * self._num_roots + root).tolist())
        self._first_unused[root] = first_unused * self._num_roots + root
        self._unbacked[root] = [self._first_unused[root]] if self._first_unused[root] < self.num_slots else []

    def sort_by_recency(self) -> None:
        """Put the chunks of all roots into one order, the least recent first."""
        for key, _ in sorted(self._slot_of.items(), key=lambda item: self._recency[item[1]]):
            self._slot_of.move_to_end(key)

    def lose(self, root: int) -> list[OffloadKey]:
        """Forget all chunks and slots of a root until it is restored; return the keys."""
        self._lost_roots.add(root)
        lost = [key for key, slot in self._slot_of.items() if slot % self._num_roots == root]
        self.retire(lost)
        self._free[root].clear()
        self._unbacked[root] = []
        return lost

    def take(
        self, count: int, full_roots: Collection[int] = (), unusable_roots: Collection[int] = ()
    ) -> tuple[list[int], dict[int, OffloadKey]]:
        """Hand out up to ``count`` slots, in ascending order, and name the chunks evicted from some of them.

        Chunks are evicted rather than that one of ``full_roots`` must give a slot new disk space; nothing in
        ``unusable_roots`` is handed out or evicted.
        """
        usable = [root for root in range(self._num_roots) if root not in unusable_roots]
        slots: list[int] = []
        free = [queue for root in usable if (queue := self._free[root])]
        while free and len(slots) < count:
            slots += [queue.popleft() for queue in free[: count - len(slots)]]
            free = [queue for queue in free if queue]
        growing = [self._unbacked[root] for root in usable if root not in full_roots]
        while len(slots) < count and any(growing):
            slots.append(self._take_unbacked(min(filter(None, growing))))
        victims = self._evict(count - len(slots), usable) if len(slots) < count and usable else {}
        slots += victims
        return sorted(slots), victims

    def _evict(self, count: int, usable_roots: list[int]) -> dict[int, OffloadKey]:
        def must_stay(slot: int) -> bool:
            return slot in self._pins or slot % self._num_roots not in usable_roots

        all_usable = len(usable_roots) == self._num_roots
        victims = self._eviction.victims(count, self._pins.__contains__ if all_usable else must_stay)
        return dict(zip(self.retire(victims), victims, strict=True))

    def _take_unbacked(self, heap: list[int]) -> int:
        slot = heappop(heap)
        root = slot % self._num_roots
        if slot == self._first_unused[root]:
            self._first_unused[root] = following = slot + self._num_roots
            if following < self.num_slots:
                heappush(heap, following)
        return slot

    def give_back(self, slot: int) -> None:
        """Return a taken slot whose write failed; it is handed out again after all other free ones."""
        root = slot % self._num_roots
        if root not in self._lost_roots:
            self._free[root].append(slot)

    def give_back_unbacked(self, slot: int) -> None:
        """Return a taken slot for which its root had no disk space."""
        root = slot % self._num_roots
        if root not in self._lost_roots:
            heappush(self._unbacked[root], slot)

    def new_generations(self, count: int) -> range:
        """Return the numbers of the next ``count`` writes: the microsecond of their begin, or higher ones.

        Higher than all before even if the clock went backwards; comparable among roots and runs.
        """
        first = max(self._last_tick + 1, self._wall_microseconds())
        self._last_tick = first + count - 1
        return range(first, first + count)

    def _move_to_end(self, keys: Iterable[OffloadKey]) -> None:
        for key in keys:
            self._slot_of.move_to_end(key)
            self._last_tick += 1
            self._recency[self._slot_of[key]] = self._last_tick

    def insert(self, entries: Iterable[IndexEntry]) -> list[IndexEntry]:
        """Put chunks, absent so far, into the index under taken slots, the last one given as the last to go.

        Return them, but for those whose root was lost meanwhile, with which nothing is done.
        """
        if self._lost_roots:
            entries = [entry for entry in entries if entry.slot % self._num_roots not in self._lost_roots]
        inserted = list(entries)
        for key, slot, generation in inserted:
            self._slot_of[key] = slot
            self._key_at[slot] = key
            self._generations[slot] = generation
            self._last_tick += 1
            self._recency[slot] = self._last_tick
        return inserted

    def discard(self, key: OffloadKey) -> None:
        """Remove a chunk from the index; its slot becomes free once it has no pins."""
        [slot] = self.retire([key])
        if slot in self._pins:
            self._discarded_while_pinned.add(slot)
        else:
            self.give_back(slot)

    def retire(self, keys: Sequence[OffloadKey]) -> list[int]:
        """Remove chunks from the index, and return their slots, which are never handed out again."""
        self._eviction.forget(keys)
        slots = [self._slot_of.pop(key) for key in keys]
        for slot in slots:
            self._vacate(slot)
        return slots

    def _vacate(self, slot: int) -> None:
        self._key_at[slot] = None
        self._recency[slot] = 0

    def pin(self, keys: Iterable[OffloadKey]) -> list[IndexEntry]:
        """Keep the slots of those chunks that are here from being handed out until `unpin`; return these chunks."""
        entries = []
        for key in keys:
            slot = self._slot_of.get(key)
            if slot is not None:
                self._pins[slot] = self._pins.get(slot, 0) + 1
                entries.append(IndexEntry(key, slot, self._generations[slot]))
        return entries

    def unpin(self, entries: Iterable[IndexEntry]) -> None:
        """Take one pin off each of these slots."""
        for _, slot, _ in entries:
            if self._pins[slot] > 1:
                self._pins[slot] -= 1
                continue
            del self._pins[slot]
            if slot in self._discarded_while_pinned:
                self._discarded_while_pinned.remove(slot)
                self.give_back(slot)

    def holds(self, entry: IndexEntry) -> bool:
        """Say whether the index still says about ``entry``'s key what ``entry`` says."""
        return self._slot_of.get(entry.key) == entry.slot and self._generations[entry.slot] == entry.generation

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks were used, the last one given last of all; absent ones are skipped."""
        self._eviction.touch([key for key in keys if key in self._slot_of])

    def refresh(self, keys: Iterable[OffloadKey]) -> None:
        """Note that these chunks belong to what was stored last; absent ones are skipped."""
        self._eviction.refresh([key for key in keys if key in self._slot_of])
