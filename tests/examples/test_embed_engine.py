"""The example engine says the same with loaded KV as with computed KV."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "embed_engine.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def test_the_answers_are_equal_and_come_from_rows_and_disk(example: dict[str, Any], tmp_path: Path) -> None:
    computed, from_rows, from_disk = example["main"](str(tmp_path))
    assert computed.tokens == from_rows.tokens == from_disk.tokens
    assert (computed.num_loaded, from_rows.num_loaded, from_disk.num_loaded) == (0, 28, 28)
    assert from_rows.num_waits == 0 < from_disk.num_waits


def test_generated_tokens_are_found_again(example: dict[str, Any], tmp_path: Path) -> None:
    config = example["parse_config"]({"cpu_bytes_to_use": "1MiB"})
    engine = example["Engine"](config)
    prompt = list(range(1, 20))
    answer = engine.generate(prompt, 9)
    longer = engine.generate(prompt + answer.tokens, 5)
    engine.close()
    other = example["Engine"](config)
    assert longer.num_loaded == 24
    assert other.generate(prompt + answer.tokens, 5).tokens == longer.tokens
    other.close()


def test_another_model_over_the_same_disk_finds_nothing(example: dict[str, Any], tmp_path: Path) -> None:
    example["main"](str(tmp_path))
    disk = {"type": "disk", "root_dirs": [str(tmp_path)], "capacity": "16MiB"}
    config = example["parse_config"]({"cpu_bytes_to_use": "1MiB", "secondary_tier_configs": [disk]})
    other = example["Engine"](config, seed=1)
    prompt = [(5 * number * number + 11) % 97 for number in range(30)]
    assert other.generate(prompt, 3).num_loaded == 0
    other.close()


def test_lost_kv_changes_the_answer(example: dict[str, Any], tmp_path: Path) -> None:
    """Or else the other tests would pass with loads that do nothing."""
    engine = example["Engine"](example["parse_config"]({"cpu_bytes_to_use": "1MiB"}))
    prompt = [(5 * number * number + 11) % 97 for number in range(30)]
    truth = engine.generate(prompt, 12).tokens
    engine._worker.get_finished = lambda: [kv.zero_() for kv in engine._model.kv] and []
    assert engine.generate(prompt, 12).tokens != truth
    engine.close()
