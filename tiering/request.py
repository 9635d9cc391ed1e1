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
        req_id: the engine's name of the request; one life from `on_new_request` to `on_request_finished`.
        kv_transfer_params: free parameters of the request. ``kv_load_tiers`` and ``kv_store_tiers``, each a list of
            tier names or types, restrict the secondary tiers that this request may read from or be stored to.
    """

    req_id: str = ""
    kv_transfer_params: Mapping[str, Any] | None = None
