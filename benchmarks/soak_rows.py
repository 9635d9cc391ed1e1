"""The device of the soak: fills and compares rows in the engine's own process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tiering.keys import OffloadKey
from tiering.replay.device import DeviceJobResult, DeviceTraffic
from tiering.testing import fill_row, row_matches
from tiering.transfer_specs import CPULoadStoreSpec

__all__ = ["RowDevice"]


class RowDevice:
    """A `tiering.replay.device.Device` whose copies happen when they are polled, as late as they may."""

    def __init__(self, row_views: Callable[[Sequence[int]], Sequence[memoryview]]) -> None:
        self._row_views = row_views
        self._open: list[tuple[int, bool, Sequence[OffloadKey], list[int]]] = []

    def store(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._open.append((job_id, True, keys, rows.block_ids.tolist()))

    def load(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._open.append((job_id, False, keys, rows.block_ids.tolist()))

    def poll(self, timeout_seconds: float) -> list[DeviceJobResult]:
        jobs, self._open = self._open, []
        return [self._copy(*job) for job in jobs]

    def traffic(self) -> DeviceTraffic:
        return DeviceTraffic()

    def close(self) -> None:
        return

    def _copy(self, job_id: int, is_store: bool, keys: Sequence[OffloadKey], rows: list[int]) -> DeviceJobResult:
        mismatches = 0
        for key, view in zip(keys, self._row_views(rows), strict=True):
            if is_store:
                fill_row(view, key)
            else:
                mismatches += not row_matches(view, key)
        return DeviceJobResult(job_id, success=True, mismatches=mismatches)
