"""What a replay has found, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tiering.quantities import format_bytes
from tiering.replay.device import DeviceTraffic
from tiering.replay.engine import Counts

__all__ = ["ReplayReport", "TierTraffic"]


@dataclass(frozen=True, slots=True)
class TierTraffic:
    """One tier's part in a replay.

    Attributes:
        hits: prefix chunks that came from it.
        stored_bytes, loaded_bytes: what moved into it and out of it.
        store_seconds, load_seconds: how long something moved.
        failures: chunks that did not make it, in either direction.
    """

    hits: int
    stored_bytes: int = 0
    loaded_bytes: int = 0
    store_seconds: float = 0.0
    load_seconds: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """The result of a replay.

    Attributes:
        counts: what the engine counted.
        tiers: per tier, in the order in which they are asked.
        seconds: duration of the replay.
        evictions: chunks that lost their row.
        leaks: what was left over at the end.
    """

    counts: Counts
    tiers: Mapping[str, TierTraffic]
    seconds: float
    evictions: int
    leaks: Sequence[str]

    @classmethod
    def of(
        cls, counts: Counts, stats: Mapping[str, Any], traffic: DeviceTraffic, seconds: float, leaks: Sequence[str]
    ) -> ReplayReport:
        """Join what the engine, the manager and the device have counted."""
        tiers = {
            "cpu": TierTraffic(
                counts.hits["cpu"],
                traffic.stored_bytes,
                traffic.loaded_bytes,
                traffic.store_seconds,
                traffic.load_seconds,
                counts.failed_copies,
            )
        }
        for name, tier in stats["tiers"].items():
            tiers[name] = TierTraffic(
                counts.hits[name],
                tier["stored_bytes"],
                tier["loaded_bytes"],
                tier["store_seconds"],
                tier["load_seconds"],
                tier["store_failures"] + tier["load_failures"],
            )
        return cls(counts, tiers, seconds, stats["evictions"], leaks)

    @property
    def is_good(self) -> bool:
        """Whether every byte was right and nothing is left over."""
        return not (self.counts.mismatches or self.leaks or self.counts.failed_copies)

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the accesses that were prefix hits."""
        return self.counts.prefix_hits / max(1, self.counts.accesses)

    def lookup_us(self) -> dict[str, float]:
        """Return the duration of a lookup call in microseconds: median, 99th percentile and maximum."""
        samples = np.array(self.counts.lookup_seconds or [0.0]) * 1e6
        p50, p99 = np.percentile(samples, [50, 99])
        return {"p50": round(float(p50), 1), "p99": round(float(p99), 1), "max": round(float(samples.max()), 1)}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        counts = self.counts
        return {
            "requests": counts.requests,
            "accesses": counts.accesses,
            "prefix_hits": counts.prefix_hits,
            "prefix_hit_rate": round(self.prefix_hit_rate, 4),
            "hits": {name: tier.hits for name, tier in self.tiers.items()},
            "bytes": {name: {"store": t.stored_bytes, "load": t.loaded_bytes} for name, t in self.tiers.items()},
            "busy_seconds": {
                name: {"store": round(t.store_seconds, 3), "load": round(t.load_seconds, 3)}
                for name, t in self.tiers.items()
            },
            "failures": {name: tier.failures for name, tier in self.tiers.items()},
            "seconds": round(self.seconds, 3),
            "lookup_us": self.lookup_us(),
            "evictions": self.evictions,
            "stores_refused": counts.stores_refused,
            "mismatches": counts.mismatches,
            "leaks": len(self.leaks),
            "leak_details": list(self.leaks),
        }

    def render(self) -> RenderableType:
        """Return tables for a terminal."""
        counts, lookup = self.counts, self.lookup_us()
        tiers = Table("tier", box=None, header_style="bold", pad_edge=False)
        for column in ("hits", "stored", "loaded", "store GB/s", "load GB/s", "failures"):
            tiers.add_column(column, justify="right")
        for name, tier in self.tiers.items():
            tiers.add_row(
                name,
                f"{tier.hits:,}",
                format_bytes(tier.stored_bytes),
                format_bytes(tier.loaded_bytes),
                _rate(tier.stored_bytes, tier.store_seconds),
                _rate(tier.loaded_bytes, tier.load_seconds),
                f"{tier.failures:,}",
            )
        facts = Table(box=None, show_header=False, pad_edge=False)
        for name, value in (
            ("requests", f"{counts.requests:,} in {self.seconds:.1f} s"),
            ("prefix hits", f"{counts.prefix_hits:,} of {counts.accesses:,} blocks ({self.prefix_hit_rate:.1%})"),
            ("evictions", f"{self.evictions:,}"),
            ("stores refused", f"{counts.stores_refused:,}"),
            ("lookup call", f"p50 {lookup['p50']:.0f} us, p99 {lookup['p99']:.0f} us, max {lookup['max']:.0f} us"),
            ("mismatches", f"{counts.mismatches:,}"),
            ("leaks", "; ".join(self.leaks) or "0"),
        ):
            facts.add_row(name, value)
        return Group(facts, Text(), tiers)


def _rate(num_bytes: int, seconds: float) -> str:
    return f"{num_bytes / seconds / 1e9:.2f}" if num_bytes and seconds > 0 else "-"
