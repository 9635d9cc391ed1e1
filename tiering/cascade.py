"""Cascade: every stored chunk goes from its row to every secondary tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
        self._restricted: dict[OffloadKey, frozenset[str]] = {}

    @property
    def num_restricted(self) -> int:
        """Chunks whose store is open and may go to some tiers only."""
        return len(self._restricted)

    def restrict(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> None:
        """Remember to which tiers the request lets its chunks go, until they are stored or given up."""
        allowed = req_context.store_tiers
        if allowed is not None:
            self._restricted.update(dict.fromkeys(keys, allowed))

    def lift(self, keys: Sequence[OffloadKey]) -> None:
        """Forget the restrictions of chunks whose store was given up."""
        if self._restricted:
            for key in keys:
                self._restricted.pop(key, None)

    def broadcast(self, keys: Sequence[OffloadKey]) -> None:
        """Store these readable chunks in every tier they may go to, as one job per tier."""
        restrictions = {}
        if self._restricted:
            restrictions = {key: self._restricted.pop(key) for key in keys if key in self._restricted}
        for tier in self._tiers:
            allowed = [k for k in keys if k not in restrictions or tier.matches(restrictions[k])]
            if not allowed:
                continue
            rows = tuple(self._rows.index[key] for key in allowed)
            self._rows.pin(rows)
            if not tier.submit_store(TransferJob(next(self._job_ids), tuple(allowed), rows)):
                self._rows.unpin(rows)

    def finish(self, job: TransferJob) -> None:
        """Release the rows of a job that has ended, whatever came of it."""
        self._rows.unpin(job.rows)
