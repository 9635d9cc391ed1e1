"""The example in tiers/README.md is a working tier."""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from disk_harness import blank_rows, bytes_of, keys_of, namespace, rows_for, run_on_default_threads

import tiers.disk.tier
from tiering.keys import OffloadKey
from tiering.tier import Tier, TierContext


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    readme = Path(tiers.disk.tier.__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
    code = readme.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "folder_tier.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("folder_tier")
    del sys.modules["folder_tier"]


def spoil(chunks: Path) -> None:
    """Make one file too short and the other too long."""
    for path, length in zip(sorted(chunks.glob("*/*")), (8191, 8193), strict=True):
        path.write_bytes(bytes(length))


def test_the_example_keeps_the_contract(tmp_path: Path, example: ModuleType) -> None:
    tier_class: type[Tier] = example.tiering_register_tier()
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
