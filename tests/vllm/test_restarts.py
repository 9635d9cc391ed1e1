"""What an engine finds of an earlier one: all that is its own, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_plans import CACHED, PROMPTS, ROW, TWO_RANKS, Rounds, assert_same_words, engine, three_times
from engine_process import Engines, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900), needs_vllm]


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
    root: Path = disk.root  # type: ignore[attr-defined]

    def change_all_slots(pid: int) -> None:
        slabs = [path for path in root.rglob("*") if path.is_file() and path.stat().st_size > ROW]
        assert slabs
        for slab in slabs:
            with slab.open("r+b") as file:
                for offset in range(4096 + 1000, slab.stat().st_size, 4096 + ROW):
                    (before,) = os.pread(file.fileno(), 1, offset)
                    os.pwrite(file.fileno(), bytes([before ^ 1]), offset)

    first, second = three_times(PROMPTS, reset="rows")[:2]
    plan = engine(model, disk(), [first | {"pause": {"at_end": True}}, second])
    (rounds,) = engines.play(plan, at_pause=change_all_slots)
    assert_same_words(rounds, without)
    assert rounds[1]["cached"] == [0, 0, 0, 0]
    assert rounds[1]["stats"]["tiers"]["disk"]["corrupt"] > 0


def test_other_weights_under_the_same_name_hit_nothing(
    engines: Engines, model: Path, tmp_path: Path, disk: Callable[..., dict[str, Any]], without: Rounds
) -> None:
    folder = shutil.copytree(model, tmp_path / "changing")

    def change_weights(pid: int) -> None:
        (file,) = folder.glob("*.safetensors")
        content = bytearray(file.read_bytes())
        weights = np.frombuffer(content, np.float32, offset=8 + int.from_bytes(content[:8], "little"))
        weights *= -0.5
        file.write_bytes(content)

    (once,) = three_times(PROMPTS)[:1]
    (before,), (unaided,), (after,) = engines.play(
        engine(folder, disk(), [once | {"pause": {"at_end": True}}]),
        engine(folder, None, [once]),
        engine(folder, disk(), [once]),
        at_pause=change_weights,
    )
    assert before["tokens"] == without[0]["tokens"]
    assert after["tokens"] == unaided["tokens"] != before["tokens"]
    assert after["cached"] == [0, 0, 0, 0]
