"""Cascade: every stored chunk goes from its row to every secondary tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tiering.attached_tier import AttachedTier
from tiering.keys import OffloadKey
from tiering.request import ReqContext
from tiering.rows import Rows
from tiering.secondary_tier import TransferJob

__all__ = ["Cascade"]


class Cascade:
    """Broadcasts rows: pin, `submit_store`, unpin. A tier that fails costs the others nothing."""

    def __init__(self, rows: Rows, tiers: Sequence[AttachedTier], job_ids: Iterator[int]) -> None:
        self._rows = rows
        self._tiers = tiers
        self._job_ids = job_ids
        self._restricted: dict[int, frozenset[str]] = {}

    def restrict(self, rows: Sequence[int], req_context: ReqContext) -> None:
        """Remember to which tiers the request lets the chunks go that it writes into rows just reserved.

        By row, because after a reset a key may have two stores open, of different requests.
        """
        allowed = req_context.store_tiers
        if allowed is not None:
            self._restricted.update(dict.fromkeys(rows, allowed))
        elif self._restricted:
            for row in rows:
                self._restricted.pop(row, None)  # of an earlier store, given up

    def broadcast(self, keys: Sequence[OffloadKey]) -> None:
        """Store these chunks, readable since now, in every tier they may go to, as one job per tier.

        A tier that has too much on its way already gets the first ones only: of a prefix, the head is worth most.
        """
        rows = [self._rows.index[key] for key in keys]
        restrictions = {row: self._restricted.pop(row) for row in rows if row in self._restricted}
        for tier in self._tiers:
            allowed = {
                key: row
                for key, row in zip(keys, rows, strict=True)
                if row not in restrictions or tier.matches(restrictions[row])
            }
            self._submit(tier, allowed)

    def refill(self, keys: Sequence[OffloadKey], rows: Sequence[int], source: AttachedTier) -> None:
        """Store chunks promoted from ``source`` in the tiers that are asked before it: there they were missing."""
        for tier in self._tiers[: self._tiers.index(source)]:
            self._submit(tier, dict(zip(keys, rows, strict=True)))

    def _submit(self, tier: AttachedTier, row_of: Mapping[OffloadKey, int]) -> None:
        admitted = tier.admit_stores(len(row_of))
        if admitted:
            job = TransferJob(next(self._job_ids), tuple(row_of)[:admitted], tuple(row_of.values())[:admitted])
            self._rows.pin(job.rows)
            if not tier.submit_store(job):
                self._rows.unpin(job.rows)

    def finish(self, job: TransferJob) -> None:
        """Release the rows of a job that has ended, whatever came of it."""
        self._rows.unpin(job.rows)
