"""Which chunk is in which slot, which slots are free, and which chunk goes next."""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from itertools import islice
from typing import NamedTuple

from tiering.keys import OffloadKey

__all__ = ["IndexEntry", "SlotTable"]


class IndexEntry(NamedTuple):
    """One stored chunk. A tuple, because hundreds of thousands are made when an index is read."""

    key: OffloadKey
    slot: int
    generation: int


class SlotTable:
    """The index of a disk tier in memory: key to slot, least recently used first. It decides; it does no I/O.

    A slot is in one of three states: in the index, free, or taken (handed out for a write, until `insert` or
    `give_back`). A pinned slot is never handed out, not even after its chunk was discarded.
    All methods but ``in`` run on the event loop thread; ``in`` may run on any.
    """

    def __init__(self, num_slots: int, num_roots: int = 1) -> None:
        """Begin empty; slot ``s`` lies in root ``s % num_roots``."""
        self.num_slots = num_slots
        self._num_roots = num_roots
        self._slot_of: OrderedDict[OffloadKey, int] = OrderedDict()
        self._generations = array("Q", bytes(8 * num_slots))
        self._next_generation = 1
        self._free: deque[int] = deque()
        # Per root a heap of slots that may have no disk space yet. A slab grows from the front, so the lowest goes
        # first; slots never used are represented by the first of them.
        self._unbacked = [[root] for root in range(num_roots)]
        self._first_unused = list(range(num_roots))
        self._pins: Counter[int] = Counter()
        self._discarded_while_pinned: set[int] = set()

    def __contains__(self, key: OffloadKey) -> bool:
        return key in self._slot_of

    def __len__(self) -> int:
        return len(self._slot_of)

    def entries(self) -> list[IndexEntry]:
        """Return all chunks, the least recent first."""
        return [IndexEntry(key, slot, self._generations[slot]) for key, slot in self._slot_of.items()]

    def restore(self, entries: Iterable[IndexEntry]) -> None:
        """Fill the empty table with chunks of distinct keys and slots, the least recent first."""
        for key, slot, generation in entries:
            self._slot_of[key] = slot
            self._generations[slot] = generation
            self._next_generation = max(self._next_generation, generation + 1)
        used = set(self._slot_of.values())
        for root in range(self._num_roots):
            last = max((slot for slot in used if slot % self._num_roots == root), default=root - self._num_roots)
            self._free.extend(slot for slot in range(root, last, self._num_roots) if slot not in used)
            self._first_unused[root] = last + self._num_roots
            self._unbacked[root] = [last + self._num_roots] if last + self._num_roots < self.num_slots else []

    def take(self, count: int, full_roots: Collection[int] = ()) -> tuple[list[int], list[OffloadKey]]:
        """Hand out up to ``count`` slots, in ascending order, and name the chunks evicted for it.

        Chunks are evicted rather than that one of ``full_roots`` must give a slot new disk space.
        """
        slots = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        growing = [heap for root, heap in enumerate(self._unbacked) if root not in full_roots]
        while len(slots) < count and any(growing):
            slots.append(self._take_unbacked(min(filter(None, growing))))
        unpinned = (key for key, slot in self._slot_of.items() if slot not in self._pins)
        victims = list(islice(unpinned, count - len(slots)))
        slots += [self._slot_of.pop(key) for key in victims]
        return sorted(slots), victims

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
        self._free.append(slot)

    def give_back_unbacked(self, slot: int) -> None:
        """Return a taken slot for which its root had no disk space."""
        heappush(self._unbacked[slot % self._num_roots], slot)

    def new_generation(self) -> int:
        """Return the number of the next write."""
        self._next_generation += 1
        return self._next_generation - 1

    def insert(self, key: OffloadKey, slot: int, generation: int) -> None:
        """Put a chunk, absent so far, into the index under a taken slot, as the most recent."""
        self._slot_of[key] = slot
        self._generations[slot] = generation

    def discard(self, key: OffloadKey) -> None:
        """Remove a chunk from the index; its slot becomes free once it has no pins."""
        slot = self._slot_of.pop(key)
        if slot in self._pins:
            self._discarded_while_pinned.add(slot)
        else:
            self._free.append(slot)

    def pin(self, key: OffloadKey) -> IndexEntry | None:
        """Keep the chunk's slot from being handed out until `unpin`; None if the chunk is absent."""
        slot = self._slot_of.get(key)
        if slot is None:
            return None
        self._pins[slot] += 1
        return IndexEntry(key, slot, self._generations[slot])

    def unpin(self, slot: int) -> None:
        """Take one pin off a slot."""
        self._pins[slot] -= 1
        if self._pins[slot] == 0:
            del self._pins[slot]
            if slot in self._discarded_while_pinned:
                self._discarded_while_pinned.remove(slot)
                self._free.append(slot)

    def holds(self, entry: IndexEntry) -> bool:
        """Say whether the index still says about ``entry``'s key what ``entry`` says."""
        return self._slot_of.get(entry.key) == entry.slot and self._generations[entry.slot] == entry.generation

    def touch(self, keys: Iterable[OffloadKey]) -> None:
        """Make these chunks the most recent, the last one most recent of all; absent ones are skipped."""
        for key in keys:
            if key in self._slot_of:
                self._slot_of.move_to_end(key)
