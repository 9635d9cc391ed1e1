"""The device side of a replay, as the simulated engine sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tiering.keys import OffloadKey
from tiering.transfer_specs import CPULoadStoreSpec

__all__ = ["Device", "DeviceJobResult", "DeviceTraffic", "NoDevice"]


@dataclass(frozen=True, slots=True)
class DeviceJobResult:
    """A store or load that every rank has ended.

    Attributes:
        job_id: which one.
        success: whether every rank has copied all of it.
        mismatches: loaded chunks whose bytes were wrong on some rank, summed over ranks.
    """

    job_id: int
    success: bool
    mismatches: int = 0


@dataclass(slots=True)
class DeviceTraffic:
    """What moved between device and rows, over all ranks.

    Attributes:
        stored_bytes, loaded_bytes: bytes copied.
        store_seconds, load_seconds: time that the busiest rank spent copying.
    """

    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_seconds: float = 0.0
    load_seconds: float = 0.0


class Device(Protocol):
    """Copies between device blocks and rows. Chunk ``i`` of a job uses chunk place ``places[i]`` of the device."""

    def store(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        """Compute the chunks on the device, then begin to copy them to rows."""
        ...

    def load(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        """Begin to copy rows to the device and to compare what has come in."""
        ...

    def poll(self, timeout_seconds: float) -> list[DeviceJobResult]:
        """Return what has ended, waiting up to the timeout for the first result."""
        ...

    def traffic(self) -> DeviceTraffic:
        """Return what has moved so far."""
        ...

    def close(self) -> None:
        """End all ranks."""
        ...


class NoDevice:
    """A device without bytes: every job ends at once and well."""

    def __init__(self) -> None:
        self._ended: list[DeviceJobResult] = []

    def store(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._ended.append(DeviceJobResult(job_id, success=True))

    def load(self, job_id: int, keys: Sequence[OffloadKey], places: Sequence[int], rows: CPULoadStoreSpec) -> None:
        self._ended.append(DeviceJobResult(job_id, success=True))

    def poll(self, timeout_seconds: float) -> list[DeviceJobResult]:
        ended, self._ended = self._ended, []
        return ended

    def traffic(self) -> DeviceTraffic:
        return DeviceTraffic()

    def close(self) -> None:
        return
