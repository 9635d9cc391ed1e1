"""The real engine says the same words with tiering as without, however short blocks, rows and time are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_plans import CACHED, CROWD, FEW_BLOCKS, PROMPTS, ROW, Rounds, assert_same_words, cpu, engine, three_times
from engine_process import Engines, needs_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900), needs_vllm]


A_LOAD = {"tier": "slow", "counter": "jobs_in_flight", "at_least": 1}


def slow(seconds: float) -> dict[str, Any]:
    """Configure few rows over a tier that takes its time."""
    return cpu(cpu_bytes_to_use=24 * ROW, secondary_tier_configs=[{"type": "slow", "seconds": seconds}])


def turns() -> Rounds:
    """Plan two turns of each of `PROMPTS`, the device's cache emptied between them."""
    return [
        {"prompts": PROMPTS, "max_tokens": 80},
        {"continues": [7, 8, 9], "reset": "device"},
    ]


@pytest.fixture(scope="module")
def said(engines: Engines, model: Path, unaided: dict[str, Rounds]) -> dict[str, Rounds]:
    """What each engine has said; one process plays all of them, because importing vLLM takes longest."""
    emptied = three_times(CROWD, reset="rows", max_tokens=40)
    plans = {
        "cpu": engine(model, cpu(), three_times(PROMPTS)),
        "spoilt": engine(model, cpu(), three_times(PROMPTS)[:2], spoil_loads=True),
        "prompt only": engine(model, cpu(offload_prompt_only=True), three_times(PROMPTS, max_tokens=80)[:1]),
        "all tokens": engine(model, cpu(), three_times(PROMPTS, max_tokens=80)[:1]),
        "next turn without": engine(model, None, turns()),
        "next turn": engine(model, cpu(), turns()),
        "bf16 without": engine(model, None, three_times(PROMPTS)[:1], dtype="bfloat16"),
        "bf16": engine(model, cpu(), three_times(PROMPTS)[:2], dtype="bfloat16"),
        "three blocks": engine(model, cpu(blocks_per_chunk=3), three_times(PROMPTS)[:2]),
        "three blocks in tokens": engine(model, cpu(block_size=96), three_times(PROMPTS)[:2]),
        "crowd": engine(model, cpu(), three_times(CROWD, max_tokens=40)[:2], num_gpu_blocks_override=FEW_BLOCKS),
        "crowd, three blocks": engine(
            model, cpu(blocks_per_chunk=3), three_times(CROWD, max_tokens=40)[:2], num_gpu_blocks_override=FEW_BLOCKS
        ),
        "crowd, few rows": engine(
            model,
            cpu(cpu_bytes_to_use=20 * ROW),
            three_times(CROWD, max_tokens=40)[:2],
            num_gpu_blocks_override=FEW_BLOCKS,
        ),
        "0 ms": engine(model, slow(0.0), emptied[:2], num_gpu_blocks_override=FEW_BLOCKS),
        "30 ms": engine(model, slow(0.03), emptied[:2], num_gpu_blocks_override=FEW_BLOCKS),
        "400 ms": engine(model, slow(0.4), emptied[:2], num_gpu_blocks_override=FEW_BLOCKS),
        "aborted": engine(
            model,
            slow(0.3),
            [emptied[0], emptied[0] | {"abort": A_LOAD}, emptied[0]],
            num_gpu_blocks_override=FEW_BLOCKS,
        ),
    }
    return unaided | dict(zip(plans, engines.play(*plans.values()), strict=True))


def test_words_are_the_same_after_the_device_has_forgotten_them(said: dict[str, Rounds]) -> None:
    assert_same_words(said["cpu"], said["without"])
    assert [each["cached"] for each in said["cpu"]] == [[0, 0, 0, 0], CACHED, CACHED]
    assert said["cpu"][1]["sources"]["host"] == sum(CACHED)


def test_zeros_instead_of_what_was_stored_change_the_words(said: dict[str, Rounds]) -> None:
    """Or else the other tests would pass without a load."""
    first, second = said["spoilt"]
    assert first["tokens"] == said["without"][0]["tokens"]
    assert all(now != before for now, before in zip(second["tokens"], first["tokens"], strict=True))


def test_words_are_the_same_in_bf16(said: dict[str, Rounds]) -> None:
    assert_same_words(said["bf16"], said["bf16 without"])
    assert said["bf16"][1]["cached"] == CACHED


@pytest.mark.parametrize("name", ["three blocks", "three blocks in tokens"])
def test_a_chunk_may_be_several_blocks(said: dict[str, Rounds], name: str) -> None:
    assert_same_words(said[name], said["without"])
    assert said[name][1]["cached"] == [288, 192, 96, 0]


def test_generated_tokens_are_stored_too_unless_told_otherwise(said: dict[str, Rounds]) -> None:
    assert said["prompt only"][0]["stats"]["chunks"] == 9 + 6 + 4 + 2
    assert said["all tokens"][0]["stats"]["chunks"] == sum((length + 79) // 32 for length in (300, 200, 130, 70))
    assert said["prompt only"][0]["tokens"] == said["all tokens"][0]["tokens"]


def test_generated_tokens_are_loaded_too(said: dict[str, Rounds]) -> None:
    (_, unaided), (_, after) = said["next turn without"], said["next turn"]
    assert after["tokens"] == unaided["tokens"]
    assert after["cached"] == [(length + 79) // 32 * 32 for length in (300, 200, 130, 70)]
    assert all(cached > length for cached, length in zip(after["cached"], (300, 200, 130, 70), strict=True))


@pytest.mark.parametrize("name", ["crowd", "crowd, three blocks", "crowd, few rows", "0 ms", "30 ms", "400 ms"])
def test_words_are_the_same_where_blocks_rows_and_time_are_short(said: dict[str, Rounds], name: str) -> None:
    assert_same_words(said[name], said["crowd without"])
    assert sum(said[name][-1]["cached"]) > 0
    assert said[name][-1]["preemptions"] > 0
    last = said[name][-1]["stats"]
    assert last["stores_open"] == last["rows_held"] == last["rows_promoting"] == last["completions_unexpected"] == 0


@pytest.mark.parametrize("name", ["0 ms", "30 ms", "400 ms"])
def test_a_slow_tier_serves(said: dict[str, Rounds], name: str) -> None:
    tier = said[name][-1]["stats"]["tiers"]["slow"]
    assert tier["loaded_chunks"] > 0
    assert tier["faults"] == tier["jobs_in_flight"] == 0
    assert said[name][-1]["sources"]["external_unspecified"] > 0


def test_requests_that_are_aborted_while_a_tier_is_asked(said: dict[str, Rounds]) -> None:
    before, aborted, after = said["aborted"]
    assert_same_words([before, after], said["crowd without"])
    assert len(aborted["tokens"]) == len(CROWD) // 2
    assert all(tokens in before["tokens"] for tokens in aborted["tokens"])
    stats = after["stats"]
    assert stats["stores_open"] == stats["rows_held"] == stats["rows_promoting"] == stats["completions_unexpected"] == 0


def test_the_front_end_shows_the_tiers(said: dict[str, Rounds]) -> None:
    shown = said["30 ms"][-1]["metrics"]
    assert shown["vllm:kv_tiering_rows"] == 24
    assert shown["vllm:kv_tiering_stored_chunks 1:slow"] > 0
    assert shown["vllm:kv_offload_tiering_read_bytes 1:slow"] > 0
    assert shown["vllm:kv_tiering_breaker 1:slow"] == 0
