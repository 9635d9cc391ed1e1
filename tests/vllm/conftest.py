"""Engines for the tests, and a tiny model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_process import HERE, Engines, make_model

ROOT = HERE.parents[1]


@pytest.fixture(scope="session")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder = tmp_path_factory.mktemp("engines")
    info = folder / "slow_tier-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-tier\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tiering.tiers]\nslow = slow_tier\n")
    paths = [str(folder), str(ROOT), str(ROOT / "plugins" / "tiering-vllm" / "src"), str(HERE)]
    players = Engines(
        {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            "ENGINE_LOG": str(folder / "log"),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": "1",
        }
    )
    yield players
    for process in players.running:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model."""
    return make_model(tmp_path_factory.mktemp("model"), seed=0)
