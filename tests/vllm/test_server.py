"""The OpenAI server with tiering says over HTTP what it says without, and shows the tiers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_plans import CACHED, PROMPTS
from engine_process import Engines, needs_vllm
from openai_server import OpenAIServer, started

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900), needs_vllm]

SOURCES = "vllm:prompt_tokens_cached_by_source_total"
NUM_CHUNKS = sum(CACHED) // 32


def test_the_server(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], region: Path, tmp_path: Path
) -> None:
    from event_subscriber import events_of, known_content, subscribed

    environment = {name: value for name, value in engines.environment.items() if "MULTIPROCESSING" not in name}
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    connector = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "KVTieringSpec", "spec_module_path": "tiering_vllm", **disk()},
    }
    prompts = [" ".join(f"w{token}" for token in tokens) for tokens in PROMPTS]
    with subscribed(tmp_path) as subscriber:
        without = OpenAIServer(model, tmp_path / "without.log", environment)
        tiering = OpenAIServer(
            model,
            tmp_path / "tiering.log",
            environment,
            kv_transfer_config=connector,
            kv_events_config=subscriber.settings,
        )
        with started(without, tiering):
            said = without.complete(prompts)
            assert without.stop() == 0
            assert len({*said}) == len(said)
            assert tiering.complete(prompts) == said
            tiering.wait_for('vllm:kv_tiering_stored_chunks_total{tier="1:disk"}', NUM_CHUNKS)
            tiering.post("/reset_prefix_cache")
            assert tiering.complete(prompts) == said
            shown = tiering.metrics()
            assert shown[f'{SOURCES}{{source="host"}}'] == sum(CACHED)
            assert shown["vllm:kv_tiering_rows"] - shown["vllm:kv_tiering_rows_free"] == NUM_CHUNKS
            tiering.post("/reset_prefix_cache?reset_external=true")
            assert tiering.complete(prompts) == said
            shown = tiering.metrics()
            assert shown[f'{SOURCES}{{source="disk"}}'] == sum(CACHED)
            assert shown['vllm:kv_tiering_loaded_chunks_total{tier="1:disk"}'] == NUM_CHUNKS
            content = known_content(events_of(subscriber.replayed()))
            assert content["cpu"] == content["disk"]
            assert len(content["disk"]) == NUM_CHUNKS
            assert os.listdir(region) == [], "all have joined, so a kill leaves nothing"
            assert tiering.stop() == 0
