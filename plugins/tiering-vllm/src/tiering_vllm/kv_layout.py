"""On what, beside the model, the bytes of a KV block depend."""

from __future__ import annotations

import platform
from pathlib import Path

__all__ = ["describe_kv_layout"]

_DECISIVE_CPU_FLAGS = ("amx_bf16", "amx_tile", "avx2", "avx512_bf16", "avx512_fp16", "avx512f", "asimd", "bf16", "sve")


def describe_kv_layout(
    device_type: str, vllm_version: str, kv_cache_layout: str | None, chosen: str, cpuinfo: Path = Path("/proc/cpuinfo")
) -> str:
    """Return a text that differs wherever the bytes of a block could.

    vLLM's attention on CPUs packs keys and values as the processor's instructions like them best, and no part of its
    interface says how; so the processor's flags and vLLM's version stand for it.

    Args:
        device_type: ``cpu`` or ``cuda``.
        vllm_version: full version.
        kv_cache_layout: vLLM's name of the layout.
        chosen: what the user adds, such as a forced attention backend.
        cpuinfo: where the processor's flags are listed.
    """
    parts = [device_type, f"layout={kv_cache_layout}", f"vllm={'.'.join(vllm_version.split('.')[:2])}"]
    if device_type == "cpu":
        parts.append(f"isa={platform.machine()}:{'+'.join(_cpu_flags(cpuinfo))}")
    if chosen:
        parts.append(f"chosen={chosen}")
    return " ".join(parts)


def _cpu_flags(cpuinfo: Path) -> list[str]:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return []
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return sorted(set(flags).intersection(_DECISIVE_CPU_FLAGS))
