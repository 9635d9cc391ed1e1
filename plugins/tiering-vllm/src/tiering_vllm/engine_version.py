"""Which of our adapters fits the vLLM that is installed."""

from __future__ import annotations

import importlib
import re
from typing import Any

from tiering.errors import PluginError

__all__ = ["adapter_of", "spec_class"]

_ADAPTERS = {(0, 30): "v030", (0, 31): "v030", (0, 32): "v030"}
"""Minor version to the package of the interface generation that it speaks."""


def adapter_of(version: str) -> str:
    """Return the name of the adapter for a vLLM version such as ``0.32.0+cpu``.

    Raises:
        PluginError: there is none.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    adapter = _ADAPTERS.get((int(found[1]), int(found[2]))) if found else None
    if adapter is None:
        known = ", ".join(f"{major}.{minor}" for major, minor in sorted(_ADAPTERS))
        raise PluginError(
            f"vLLM {version} is not supported by this version of tiering-vllm; supported: {known}. Its offloading "
            "interface changes between minor versions, and a wrong guess could give wrong answers"
        )
    return adapter


def spec_class() -> type[Any]:
    """Return our spec class for the vLLM that is installed.

    Raises:
        PluginError: no adapter fits it, or it is not installed.
    """
    try:
        version = importlib.import_module("vllm.version").__version__
    except ImportError as error:
        raise PluginError(f"vLLM cannot be imported: {error}") from error
    spec: type[Any] = importlib.import_module(f"tiering_vllm.{adapter_of(version)}.spec").KVTieringSpec
    return spec
