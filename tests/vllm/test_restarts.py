"""What an engine finds of an earlier one: all that is its own, and nothing else."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_plans import CACHED, PROMPTS, ROW, TWO_RANKS, Rounds, assert_same_words, engine, three_times
from engine_process import Engines, make_model, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300), needs_vllm]


def test_a_killed_engine_leaves_its_chunks_and_nothing_else(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], bucket: dict[str, Any], without: Rounds
) -> None:
    """The folder of the regions is empty at the end, or the fixture would fail."""
    process, _ = engines.start(engine(model, disk(bucket), three_times(PROMPTS)[:1]))
    process.kill()
    process.wait()
    ((from_disk,),) = engines.play(engine(model, disk(bucket), three_times(PROMPTS)[:1]))
    root: Path = disk.root  # type: ignore[attr-defined]
    shutil.rmtree(root)
    root.mkdir()
    ((from_bucket,),) = engines.play(engine(model, disk(bucket), three_times(PROMPTS)[:1]))
    for after, source in ((from_disk, "disk"), (from_bucket, "external_unspecified")):
        assert after["tokens"] == without[0]["tokens"]
        assert after["cached"] == CACHED
        assert after["sources"][source] == sum(CACHED)


def test_two_ranks_say_the_same_and_are_not_mistaken_for_one(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], bucket: dict[str, Any], without: Rounds
) -> None:
    (two,) = engines.play(engine(model, disk(bucket), three_times(PROMPTS)[:2], tensor_parallel_size=2), **TWO_RANKS)
    assert_same_words(two, without)
    assert two[1]["cached"] == CACHED
    tiers = two[1]["stats"]["tiers"]
    assert tiers["disk"]["stored_chunks"] == tiers["s3"]["stored_chunks"] > 0
    ((one,),) = engines.play(engine(model, disk(bucket), three_times(PROMPTS)[:1]))
    assert one["tokens"] == without[0]["tokens"]
    assert one["cached"] == [0, 0, 0, 0]


def test_a_prefix_longer_than_the_rows_comes_as_far_as_it_fits(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]]
) -> None:
    long = [{"prompts": [PROMPTS[0][:150]], "reset": "device"}]
    (first,), (second,) = engines.play(engine(model, disk(), long), engine(model, disk(cpu_bytes_to_use=3 * ROW), long))
    assert second["tokens"] == first["tokens"]
    assert second["cached"] == [96]
    assert second["stats"]["tiers"]["disk"]["loaded_chunks"] <= 4


def test_a_byte_that_has_changed_on_the_disk_is_a_miss(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], without: Rounds
) -> None:
    engines.play(engine(model, disk(), three_times(PROMPTS)[:1]))
    root: Path = disk.root  # type: ignore[attr-defined]
    slabs = [path for path in root.rglob("*") if path.is_file() and path.stat().st_size > ROW]
    assert slabs
    for slab in slabs:
        content = bytearray(slab.read_bytes())
        for offset in range(4096 + 1000, len(content), 4096 + ROW):
            content[offset] ^= 1
        slab.write_bytes(content)
    ((after,),) = engines.play(engine(model, disk(), three_times(PROMPTS)[:1]))
    assert after["tokens"] == without[0]["tokens"]
    assert after["cached"] == [0, 0, 0, 0]
    assert after["stats"]["tiers"]["disk"]["corrupt"] > 0


def test_other_weights_under_the_same_name_hit_nothing(
    engines: Engines, tmp_path: Path, disk: Callable[..., dict[str, Any]]
) -> None:
    folder = make_model(tmp_path / "changing", seed=1)
    ((before,),) = engines.play(engine(folder, disk(), three_times(PROMPTS)[:1]))
    make_model(folder, seed=2)
    (unaided,), (after,) = engines.play(
        engine(folder, None, three_times(PROMPTS)[:1]), engine(folder, disk(), three_times(PROMPTS)[:1])
    )
    assert after["tokens"] == unaided["tokens"] != before["tokens"]
    assert after["cached"] == [0, 0, 0, 0]
