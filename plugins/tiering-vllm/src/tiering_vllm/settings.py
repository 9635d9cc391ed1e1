"""What the user wrote in ``kv_connector_extra_config``, as our configuration and the few settings beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiering.config import TieringConfig
from tiering.config_file import load_config, parse_config
from tiering.errors import ConfigError

__all__ = ["Settings", "read_settings"]

_SOURCE = "kv_connector_extra_config"

_NOT_TIERING = frozenset(
    {
        "blocks_per_chunk",
        "canonical_layout",
        "config_file",
        "kv_layout",
        "model_revision",
        "self_describing_kv_events",
        "spec_module_path",
        "spec_name",
    }
)
"""Keys that vLLM reads, and ours that are no part of a `TieringConfig`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that the user chose.

    Attributes:
        tiering: the configuration of the tiers.
        kv_layout: what the user adds to the identity of the KV layout, such as a forced attention backend.
        model_revision: the revision of a model of the hub, where its cache holds several.
    """

    tiering: TieringConfig
    kv_layout: str = ""
    model_revision: str = ""


def read_settings(extra_config: Mapping[str, Any], tokens_per_block: Sequence[int]) -> Settings:
    """Read the extra configuration, or the file that it names.

    Args:
        extra_config: as vLLM has it; not changed.
        tokens_per_block: tokens of one device block, per KV-cache group.

    Raises:
        ConfigError: something in it cannot be used, or it names a file and sets the same things beside it.
    """
    if extra_config.get("canonical_layout"):
        raise ConfigError(f"{_SOURCE}: canonical_layout: true: is not supported; allowed: false")
    inline = {key: value for key, value in extra_config.items() if key not in _NOT_TIERING}
    if "config_file" in extra_config:
        if inline or "blocks_per_chunk" in extra_config:
            doubled = ", ".join(sorted(inline) or ["blocks_per_chunk"])
            raise ConfigError(f"{_SOURCE}: config_file: all settings are read from that file; leave out {doubled}")
        config = load_config(extra_config["config_file"])
    else:
        if (factor := extra_config.get("blocks_per_chunk")) is not None:
            inline["block_size"] = _tokens_per_chunk(factor, tokens_per_block)
        config = parse_config(inline, _SOURCE)
    texts = {key: extra_config.get(key, "") for key in ("kv_layout", "model_revision")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise ConfigError(f"{_SOURCE}: {key}: {value!r}: must be a text")
    return Settings(config, **texts)


def _tokens_per_chunk(factor: object, tokens_per_block: Sequence[int]) -> int | None:
    if type(factor) is not int or factor < 1:
        raise ConfigError(f"{_SOURCE}: blocks_per_chunk: {factor!r}: allowed: 1 or more")
    if factor == 1:
        return None
    if len(distinct := set(tokens_per_block)) != 1:
        raise ConfigError(
            f"{_SOURCE}: blocks_per_chunk: {factor}: cannot be chosen for KV-cache groups with blocks of "
            f"{', '.join(map(str, sorted(distinct)))} tokens; allowed: 1"
        )
    return factor * distinct.pop()
