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

    Attributes:
        num_rows: rows that promotions hold now, queued or being filled.
        num_refused: promotions that found no row.
    """

    def __init__(self, rows: Rows, job_ids: Iterator[int], max_rows: int) -> None:
        self.num_rows = 0
        self.num_refused = 0
        self._rows = rows
        self._job_ids = job_ids
        self._max_rows = max_rows
        self._queued: defaultdict[str, dict[AttachedTier, dict[OffloadKey, int]]] = defaultdict(dict)

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
        self.num_rows += 1
        self._queued[req_id].setdefault(tier, {})[key] = reservation.rows[0]
        return True

    def submit_queued(self) -> list[TransferJob]:
        """Hand over what was queued; returns the jobs that a tier refused, their rows given up."""
        refused = []
        for req_id, batches in self._queued.items():
            for tier, rows in batches.items():
                job = TransferJob(next(self._job_ids), tuple(rows), tuple(rows.values()), req_id)
                if not tier.submit_load(job):
                    self._give_up(job.rows)
                    refused.append(job)
        self._queued.clear()
        return refused

    def drop(self, req_id: str) -> None:
        """Give up what is queued for a request that has ended."""
        for rows in self._queued.pop(req_id, {}).values():
            self._give_up(tuple(rows.values()))

    def drop_all(self) -> None:
        """Give up whatever is queued."""
        for req_id in list(self._queued):
            self.drop(req_id)

    def expire(self, job: TransferJob) -> None:
        """Nobody waits for this job any more; its rows stay reserved until `finish`, since it may still fill them."""
        self._rows.orphan(job.rows)

    def finish(self, job: TransferJob, succeeded: Sequence[bool]) -> list[int]:
        """Make the filled rows of a job that has ended readable and give up the others.

        Returns:
            The rows that hold their key now; not those whose key was taken away meanwhile, by a reset or `expire`.
        """
        filled = [row for row, done in zip(job.rows, succeeded, strict=True) if done]
        self.num_rows -= len(filled)
        self._give_up([row for row, done in zip(job.rows, succeeded, strict=True) if not done])
        return [self._rows.index[key] for key in self._rows.commit(filled)]

    def _give_up(self, rows: Sequence[int]) -> None:
        self.num_rows -= len(rows)
        self._rows.abort(rows)
