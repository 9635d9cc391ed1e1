"""Promotion: a chunk found in a secondary tier is brought into a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tiering.attached_tier import AttachedTier
from tiering.keys import OffloadKey
from tiering.rows import Rows
from tiering.secondary_tier import TransferJob

__all__ = ["Promotion"]


class Promotion:
    """Reserves rows at lookup, loads them in one batch per (tier, request) at the end of the step.

    A chunk that is late, or slow and begun again from another tier, loses its row to nobody: the row stays reserved as
    a *spare*, since the tier may still fill it, and is the chunk's row again if it is filled first.

    Attributes:
        num_refused: promotions that found no row.
    """

    def __init__(self, rows: Rows, job_ids: Iterator[int], max_rows: int) -> None:
        self.num_refused = 0
        self._rows = rows
        self._job_ids = job_ids
        self._max_rows = max_rows
        self._filling: set[int] = set()
        self._spares: set[int] = set()
        self._hedged: dict[OffloadKey, int] = {}  # which spare is the first row of a chunk that was begun again
        self._queued: defaultdict[str, dict[AttachedTier, dict[OffloadKey, int]]] = defaultdict(dict)

    @property
    def num_rows(self) -> int:
        """Rows that promotions hold now, queued or being filled."""
        return len(self._filling)

    @property
    def num_queued(self) -> int:
        """Requests with promotions that no step end has handed over yet."""
        return len(self._queued)

    def queue(self, key: OffloadKey, tier: AttachedTier, req_id: str) -> bool:
        """Reserve a row for ``key``, to be filled from ``tier``; False if there is none to be had."""
        reservation = self._rows.reserve([key]) if self.num_rows < self._max_rows else None
        if reservation is None:
            self.num_refused += 1
            return False
        self._filling.add(reservation.rows[0])
        self._queued[req_id].setdefault(tier, {})[key] = reservation.rows[0]
        return True

    def submit_queued(self) -> list[tuple[AttachedTier, TransferJob]]:
        """Hand over what was queued; returns what a tier refused, its rows given up."""
        refused = []
        for req_id, batches in self._queued.items():
            for tier, rows in batches.items():
                job = TransferJob(next(self._job_ids), tuple(rows), tuple(rows.values()), req_id)
                if not tier.submit_load(job):
                    self._give_up(job.rows)
                    refused.append((tier, job))
        self._queued.clear()
        return refused

    def drop(self, req_id: str) -> None:
        """Give up what is queued for a request that has ended."""
        for rows in self._queued.pop(req_id, {}).values():
            self._give_up(tuple(rows.values()))

    def drop_all(self) -> None:
        """Give up whatever is queued, and let what is being filled become nobody's."""
        for req_id in list(self._queued):
            self.drop(req_id)
        self._spares.clear()
        self._hedged.clear()

    def expire(self, job: TransferJob) -> None:
        """Nobody waits for this job any more; its rows become spares."""
        for key, row in zip(job.keys, job.rows, strict=True):
            if self._rows.index.get(key) == row:  # not reset away
                self._spares.add(row)
            if self._hedged.get(key) in job.rows:
                del self._hedged[key]  # too late to be waited for again, should the second load fail
        self._rows.orphan(job.rows)

    def hedge(self, key: OffloadKey, row: int, tier: AttachedTier, req_id: str) -> bool:
        """Queue ``key`` from another tier too, its present row becoming a spare; False if there is no second row."""
        if self._rows.index.get(key) != row:
            return False
        self._rows.orphan([row])
        if not self.queue(key, tier, req_id):
            self._rows.give_key(row, key)
            return False
        self._spares.add(row)
        self._hedged[key] = row
        return True

    def finish(self, job: TransferJob, succeeded: Sequence[bool]) -> list[int]:
        """Make the filled rows of a job that has ended readable and give up the others.

        Returns:
            The rows that hold their key now; not those whose key has another row by now, or was reset away.
        """
        filled = []
        for key, row, done in zip(job.keys, job.rows, succeeded, strict=True):
            first = self._hedged.pop(key, None)
            if not done:
                self._give_up([row])
                if first in self._spares and key not in self._rows.index:
                    self._spares.remove(first)
                    self._rows.give_key(first, key)
                continue
            if row in self._spares:
                self._claim(key, row)
            self._filling.remove(row)
            self._spares.discard(row)
            filled.append(row)
        return [self._rows.index[key] for key in self._rows.commit(filled)]

    def _claim(self, key: OffloadKey, spare: int) -> None:
        """Make a spare that has been filled the row of its chunk again, unless the chunk has a row of its own."""
        other = self._rows.index.get(key)
        if other in self._filling:
            self._rows.orphan([other])
            self._spares.add(other)
        if key not in self._rows.index:
            self._rows.give_key(spare, key)

    def _give_up(self, rows: Sequence[int]) -> None:
        self._filling.difference_update(rows)
        self._spares.difference_update(rows)
        self._rows.abort(rows)
