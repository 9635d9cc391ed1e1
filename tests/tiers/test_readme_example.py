"""The example in tiers/README.md is a working tier."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from disk_harness import blank_rows, bytes_of, keys_of, namespace, rows_for, run_on_default_threads

import tiers.disk.tier
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext


def example(folder: Path) -> ModuleType:
    readme = Path(tiers.disk.tier.__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    path = folder / "folder_tier.py"
    path.write_text(readme.partition("```python\n")[2].partition("```")[0], encoding="utf-8")
    spec = importlib.util.spec_from_file_location("folder_tier", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def spoil(chunks: Path) -> None:
    """Make one file too short and the other too long."""
    for path, length in zip(sorted(chunks.glob("*/*")), (8191, 8193), strict=True):
        path.write_bytes(bytes(length))


def test_the_example_keeps_the_contract(tmp_path: Path) -> None:
    tier_class: type[Tier] = example(tmp_path).tiering_register_tier()
    evicted: list[Sequence[OffloadKey]] = []

    def make(model_name: str) -> Tier:
        context = TierContext(
            name="folder",
            row_bytes=8192,
            namespace=namespace(model_name=model_name),
            clock=time.monotonic,
            run_blocking=run_on_default_threads,
            report_evicted=evicted.append,
        )
        config = tier_class.config_type.model_validate({"type": "folder", "folder": tmp_path / "chunks"})
        return tier_class(config, context)

    async def scenario() -> None:
        tier = make("model")
        await tier.open()
        keys = keys_of(1, 2, 3)
        assert await tier.store(keys[:2], rows_for(keys[:2])) == [True, True]
        assert await tier.lookup(keys) == [True, True, False]
        rows = blank_rows(3)
        assert await tier.load(keys, rows) == [True, True, False]
        assert [bytes(row) for row in rows[:2]] == [bytes_of(key) for key in keys[:2]]
        spoil(tmp_path / "chunks")
        assert await tier.load(keys, rows) == [False, False, False]
        other = make("other model")
        await other.open()
        assert await other.lookup(keys) == [False, False, False]
        await tier.close()

    asyncio.run(scenario())
