"""Engines and configurations for the tests of specs."""

from __future__ import annotations

from typing import Any

from tiering.config import TieringConfig
from tiering.config_file import parse_config
from tiering.engine_config import EngineConfig, KVGroup


def engine(*tokens_per_block: int, pages: tuple[int, ...] = (4096, 2048), **facts: Any) -> EngineConfig:
    """An engine with one KV-cache group per number of tokens, all over the same tensors."""
    groups = tuple(KVGroup(tokens, tuple(range(len(pages)))) for tokens in tokens_per_block or (16,))
    facts = {"engine_id": "spec-test", "num_device_blocks": 8, "tokens_per_hash": 16} | facts
    return EngineConfig(groups=groups, tensor_page_bytes=pages, **facts)


def config(**settings: Any) -> TieringConfig:
    return parse_config({"cpu_bytes_to_use": "1MiB"} | settings, source="test")
