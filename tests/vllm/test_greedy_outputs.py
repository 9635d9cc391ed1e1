"""The real engine says the same words with tiering as without, whatever the tiers do to it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_process import Engines, make_model, needs_vllm, prompt

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200), needs_vllm]

Rounds = list[dict[str, Any]]

PROMPTS = [prompt(number, length) for number, length in enumerate((300, 200, 130, 70))]
CROWD = [prompt(number, 150 + 11 * (number % 7), prompt(99, 96)) for number in range(14)]
ROW = 32 * 4 * 2 * 2 * 64 * 4
"""Bytes of a block of 32 tokens: 4 layers, keys and values, 2 heads of 64, fp32."""

TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def engine(model: Path, tiering: dict[str, Any] | None, rounds: Rounds, **arguments: Any) -> dict[str, Any]:
    """Plan one engine."""
    llm = {"dtype": "float32", "block_size": 32, "max_model_len": 1024, "num_gpu_blocks_override": 64, **arguments}
    extra = {key: llm.pop(key) for key in ("spoil_loads",) if key in llm}
    return {"llm": {"model": str(model), **llm}, "tiering": tiering, "rounds": rounds, **extra}


def three_times(prompts: list[list[int]], *, reset: str = "device", **more: Any) -> Rounds:
    """Plan to ask the same thrice, the device's cache emptied before each time, or the rows too."""
    return [{"prompts": prompts, "reset": reset, **more} for _ in range(3)]


def cpu(**settings: Any) -> dict[str, Any]:
    """Configure rows in CPU memory."""
    return {"cpu_bytes_to_use": 64 * 2**20, **settings}


def slow(seconds: float) -> dict[str, Any]:
    """Configure few rows over a tier that takes its time."""
    return cpu(cpu_bytes_to_use=24 * ROW, secondary_tier_configs=[{"type": "slow", "seconds": seconds}])


@pytest.fixture(scope="module")
def said(engines: Engines, model: Path) -> dict[str, Rounds]:
    """What each engine has said; one process plays all of them, because importing vLLM takes longest."""
    emptied = three_times(CROWD, reset="rows", max_tokens=40)
    plans = {
        "without": engine(model, None, three_times(PROMPTS)[:1]),
        "cpu": engine(model, cpu(), three_times(PROMPTS)),
        "spoilt": engine(model, cpu(), three_times(PROMPTS)[:2], spoil_loads=True),
        "prompt only": engine(model, cpu(offload_prompt_only=True), three_times(PROMPTS, max_tokens=80)[:1]),
        "all tokens": engine(model, cpu(), three_times(PROMPTS, max_tokens=80)[:1]),
        "bf16 without": engine(model, None, three_times(PROMPTS)[:1], dtype="bfloat16"),
        "bf16": engine(model, cpu(), three_times(PROMPTS)[:2], dtype="bfloat16"),
        "three blocks": engine(model, cpu(blocks_per_chunk=3), three_times(PROMPTS)[:2]),
        "three blocks in tokens": engine(model, cpu(block_size=96), three_times(PROMPTS)[:2]),
        "crowd without": engine(model, None, three_times(CROWD, max_tokens=40)[:1], num_gpu_blocks_override=36),
        "crowd": engine(model, cpu(), three_times(CROWD, max_tokens=40)[:2], num_gpu_blocks_override=36),
        "crowd, few rows": engine(
            model, cpu(cpu_bytes_to_use=20 * ROW), three_times(CROWD, max_tokens=40)[:2], num_gpu_blocks_override=36
        ),
        "0 ms": engine(model, slow(0.0), emptied[:2], num_gpu_blocks_override=36),
        "30 ms": engine(model, slow(0.03), emptied[:2], num_gpu_blocks_override=36),
        "400 ms": engine(model, slow(0.4), emptied[:2], num_gpu_blocks_override=36),
    }
    return dict(zip(plans, engines.play(*plans.values()), strict=True))


@pytest.fixture(scope="module")
def without(engines: Engines, model: Path) -> Rounds:
    """What the engine says without tiering."""
    (rounds,) = engines.play(engine(model, None, three_times(PROMPTS)[:1]))
    return rounds


def assert_same_words(rounds: Rounds, without: Rounds) -> None:
    for each in rounds:
        assert each["tokens"] == without[0]["tokens"]


def test_words_are_the_same_after_the_device_has_forgotten_them(said: dict[str, Rounds]) -> None:
    assert_same_words(said["cpu"], said["without"])
    assert [each["cached"] for each in said["cpu"]] == [[0, 0, 0, 0], [288, 192, 128, 64], [288, 192, 128, 64]]
    assert said["cpu"][1]["sources"]["host"] == 288 + 192 + 128 + 64


def test_zeros_instead_of_what_was_stored_change_the_words(said: dict[str, Rounds]) -> None:
    """Or else the other tests would pass without a load."""
    first, second = said["spoilt"]
    assert first["tokens"] == said["without"][0]["tokens"]
    assert all(now != before for now, before in zip(second["tokens"], first["tokens"], strict=True))


def test_words_are_the_same_in_bf16(said: dict[str, Rounds]) -> None:
    assert_same_words(said["bf16"], said["bf16 without"])
    assert said["bf16"][1]["cached"] == [288, 192, 128, 64]


@pytest.mark.parametrize("name", ["three blocks", "three blocks in tokens"])
def test_a_chunk_may_be_several_blocks(said: dict[str, Rounds], name: str) -> None:
    assert_same_words(said[name], said["without"])
    assert said[name][1]["cached"] == [288, 192, 96, 0]


def test_generated_tokens_are_stored_too_unless_told_otherwise(said: dict[str, Rounds]) -> None:
    assert said["prompt only"][0]["stats"]["chunks"] == 9 + 6 + 4 + 2
    assert said["all tokens"][0]["stats"]["chunks"] == sum((length + 79) // 32 for length in (300, 200, 130, 70))
    assert said["prompt only"][0]["tokens"] == said["all tokens"][0]["tokens"]


@pytest.mark.parametrize("name", ["crowd", "crowd, few rows", "0 ms", "30 ms", "400 ms"])
def test_words_are_the_same_where_blocks_rows_and_time_are_short(said: dict[str, Rounds], name: str) -> None:
    assert_same_words(said[name], said["crowd without"])
    assert sum(said[name][-1]["cached"]) > 0
    last = said[name][-1]["stats"]
    assert last["stores_open"] == last["rows_held"] == last["rows_promoting"] == last["completions_unexpected"] == 0


@pytest.mark.parametrize("name", ["0 ms", "30 ms", "400 ms"])
def test_a_slow_tier_serves(said: dict[str, Rounds], name: str) -> None:
    tier = said[name][-1]["stats"]["tiers"]["slow"]
    assert tier["loaded_chunks"] > 0
    assert tier["faults"] == tier["jobs_in_flight"] == 0
    assert said[name][-1]["sources"]["external_unspecified"] > 0


def test_the_front_end_shows_the_tiers(said: dict[str, Rounds]) -> None:
    shown = said["30 ms"][-1]["metrics"]
    assert shown["vllm:kv_tiering_rows"] == 24
    assert shown["vllm:kv_tiering_stored_chunks 1:slow"] > 0
    assert shown["vllm:kv_offload_tiering_read_bytes 1:slow"] > 0
    assert shown["vllm:kv_tiering_breaker 1:slow"] == 0


@pytest.fixture
def disk() -> Iterator[Callable[..., dict[str, Any]]]:
    """Configurations with a region and a disk tier in one folder in memory; ``region`` is empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="tiering-test-", dir="/dev/shm"))
    (folder / "region").mkdir()

    def configuration(**settings: Any) -> dict[str, Any]:
        tier = {"type": "disk", "root_dirs": [str(folder / "disk")], "capacity": "64MiB"}
        return cpu(region={"directory": str(folder / "region")}, secondary_tier_configs=[tier], **settings)

    configuration.folder = folder  # type: ignore[attr-defined]
    yield configuration
    assert os.listdir(folder / "region") == []
    shutil.rmtree(folder)


def test_a_killed_engine_leaves_its_chunks_and_nothing_else(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], without: Rounds
) -> None:
    process, _ = engines.start(engine(model, disk(), three_times(PROMPTS)[:1]))
    process.kill()
    process.wait()
    ((after,),) = engines.play(engine(model, disk(), three_times(PROMPTS)[:1]))
    assert after["tokens"] == without[0]["tokens"]
    assert after["cached"] == [288, 192, 128, 64]
    assert after["sources"]["disk"] == 288 + 192 + 128 + 64


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
    root: Path = disk.folder / "disk"  # type: ignore[attr-defined]
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


def test_two_ranks_say_the_same_and_are_not_mistaken_for_one(
    engines: Engines, model: Path, disk: Callable[..., dict[str, Any]], without: Rounds
) -> None:
    (two,) = engines.play(engine(model, disk(), three_times(PROMPTS)[:2], tensor_parallel_size=2), **TWO_RANKS)
    assert_same_words(two, without)
    assert two[1]["cached"] == [288, 192, 128, 64]
    ((one,),) = engines.play(engine(model, disk(), three_times(PROMPTS)[:1]))
    assert one["tokens"] == without[0]["tokens"]
    assert one["cached"] == [0, 0, 0, 0]
