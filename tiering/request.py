"""What an engine tells us about the request on whose behalf it calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ReqContext"]


@dataclass(frozen=True, slots=True)
class ReqContext:
    """One request of the engine (seed, chapter 1.2).

    Attributes:
        req_id: the engine's name of the request; one life from `on_new_request` to `on_request_finished`. Of a
            request without a name nothing is remembered from one step to the next.
        kv_transfer_params: free parameters of the request. ``kv_load_tiers`` and ``kv_store_tiers``, each a list of
            tier names or types, restrict the secondary tiers that this request may read from or be stored to.
    """

    req_id: str = ""
    kv_transfer_params: Mapping[str, Any] | None = None

    @property
    def load_tiers(self) -> frozenset[str] | None:
        """The tiers that chunks may be promoted from; None for all."""
        return self._tiers("kv_load_tiers")

    @property
    def store_tiers(self) -> frozenset[str] | None:
        """The tiers that chunks may be stored to; None for all."""
        return self._tiers("kv_store_tiers")

    def _tiers(self, parameter: str) -> frozenset[str] | None:
        names = (self.kv_transfer_params or {}).get(parameter)
        if names is None:
            return None
        if isinstance(names, str):
            return frozenset({names})
        # A restriction that cannot be read must not widen into none at all: it then names no tier.
        return (
            frozenset(name for name in names if isinstance(name, str))
            if isinstance(names, list | tuple)
            else frozenset()
        )
