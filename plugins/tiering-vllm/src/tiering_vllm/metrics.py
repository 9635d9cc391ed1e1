"""The metrics of the tiers: vLLM's names where vLLM has one for the same thing, own names for the rest.

All names contain ``vllm``, because vLLM unregisters by that when an engine is made anew in one process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["METRICS", "Metric", "MetricKind", "Observation", "StatsDelta"]


class MetricKind(Enum):
    """How a metric's observations add up."""

    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        key: its key in `TieringOffloadingManager.get_stats`, or in the part of a tier.
        name: in Prometheus.
        kind: counter or gauge.
        documentation: for people.
        per_tier: whether it exists once for each tier, with the label ``tier``.
    """

    key: str
    name: str
    kind: MetricKind
    documentation: str
    per_tier: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        return ("tier",) if self.per_tier else ()


def _tier_counter(key: str, documentation: str, name: str = "") -> Metric:
    return Metric(key, name or f"vllm:kv_tiering_{key}", MetricKind.COUNTER, documentation, per_tier=True)


def _counter(key: str, documentation: str, name: str = "") -> Metric:
    return Metric(key, name or f"vllm:kv_tiering_{key}", MetricKind.COUNTER, documentation, per_tier=False)


def _gauge(key: str, documentation: str, *, per_tier: bool = False) -> Metric:
    return Metric(key, f"vllm:kv_tiering_{key}", MetricKind.GAUGE, documentation, per_tier=per_tier)


METRICS = (
    _tier_counter("loaded_bytes", "bytes read from a tier into rows", "vllm:kv_offload_tiering_read_bytes"),
    _tier_counter("load_seconds", "time during which a tier was read", "vllm:kv_offload_tiering_read_time"),
    _tier_counter("stored_bytes", "bytes written from rows to a tier", "vllm:kv_offload_tiering_write_bytes"),
    _tier_counter("store_seconds", "time during which a tier was written", "vllm:kv_offload_tiering_write_time"),
    _tier_counter("loaded_chunks", "chunks read from a tier"),
    _tier_counter("load_failures", "chunks that could not be read from a tier"),
    _tier_counter("load_timeouts", "chunks that a tier was too late for"),
    _tier_counter("stored_chunks", "chunks written to a tier"),
    _tier_counter("store_failures", "chunks that could not be written to a tier"),
    _tier_counter("stores_shed", "chunks not handed to a tier because too many were on their way"),
    _tier_counter("lookup_failures", "lookups that a tier failed in"),
    _tier_counter("lookup_timeouts", "lookups that a tier was too late for"),
    _tier_counter("corrupt", "chunks of a tier whose bytes did not verify"),
    _tier_counter("faults", "calls in which a tier failed or broke its contract"),
    _tier_counter("breaker_opened", "times that a tier was left alone after failures"),
    _tier_counter("process_ends", "times that the process of an isolated tier ended by itself"),
    _gauge("breaker", "0 while a tier is used, 1 while it is left alone or tested again", per_tier=True),
    _gauge("jobs_in_flight", "jobs that a tier has not ended", per_tier=True),
    _gauge("rows", "rows of CPU memory"),
    _gauge("rows_free", "rows that hold no chunk"),
    _gauge("rows_promoting", "rows that a tier is reading into"),
    _gauge("rows_held", "rows pinned for requests that wait"),
    _counter("evictions", "chunks evicted from the rows"),
    _counter("stores_refused", "stores that found no room in the rows"),
    _counter(
        "promotions_refused",
        "promotions that found no room in the rows",
        "vllm:kv_offload_tiering_promotion_allocation_failures",
    ),
)


@dataclass(frozen=True, slots=True)
class Observation:
    """What is to be added to a counter, or what a gauge is set to.

    Attributes:
        metric: which one.
        value: the increase, or the value.
        labels: the values of `Metric.labels`.
    """

    metric: Metric
    value: float
    labels: tuple[str, ...]


class StatsDelta:
    """Turns ever growing statistics into what has happened since the last look. Scheduler thread only."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], Mapping[str, Any]] = {}

    def observe(self, stats: Mapping[str, Any]) -> Iterator[Observation]:
        """Yield what has changed since the last call; of the first call everything that is not a zero counter.

        Args:
            stats: as `TieringOffloadingManager.get_stats` gives them.
        """
        tiers = [((f"{number}:{name}",), tier) for number, (name, tier) in enumerate(stats["tiers"].items(), 1)]
        for labels, values in [((), stats), *tiers]:
            last = self._last.get(labels, {})
            # vLLM asks in every step, and in most of them nothing has changed.
            if values != last:
                self._last[labels] = dict(values)
                yield from _changes(labels, values, last)


def _changes(labels: tuple[str, ...], values: Mapping[str, Any], last: Mapping[str, Any]) -> Iterator[Observation]:
    for metric in METRICS:
        if metric.per_tier != bool(labels):
            continue
        value, before = _number(values[metric.key]), _number(last.get(metric.key))
        if value == before:
            continue
        if metric.kind is MetricKind.GAUGE:
            yield Observation(metric, value, labels)
        elif value or before:
            yield Observation(metric, value - (before or 0), labels)


def _number(value: Any) -> Any:
    """Return what stands for the state of a breaker; all else as it is."""
    return float(value != "closed") if isinstance(value, str) else value
