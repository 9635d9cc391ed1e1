"""KV-cache tiering inside vLLM, chosen by ``spec_name: KVTieringSpec`` and ``spec_module_path: tiering_vllm``.

vLLM imports this module in its front end, its scheduler and its workers; it loads nothing before it is asked for the
spec. The spec is not called TieringOffloadingSpec, because vLLM has one of that name and prefers its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tiering_vllm.v030.spec import KVTieringSpec

__all__ = ["KVTieringSpec"]


def __getattr__(name: str) -> Any:
    if name != "KVTieringSpec":
        raise AttributeError(f"module 'tiering_vllm' has no attribute {name!r}")
    from tiering_vllm.engine_version import spec_class  # noqa: PLC0415 - nothing is loaded before

    return spec_class()
