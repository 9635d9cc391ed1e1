"""What engines are told to do, and what they must say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Rounds = list[dict[str, Any]]

ROW = 32 * 4 * 2 * 2 * 64 * 4
"""Bytes of a block of 32 tokens: 4 layers, keys and values, 2 heads of 64, fp32."""

TWO_RANKS = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}


def prompt(number: int, num_tokens: int, shared: Sequence[int] = ()) -> list[int]:
    """Return a prompt of this length that begins with ``shared`` and is unlike that of any other number."""
    own = [3 + (number * 7919 + position * position * 31 + position * 13) % 500 for position in range(num_tokens)]
    return [*shared, *own][:num_tokens]


PROMPTS = [prompt(number, length) for number, length in enumerate((300, 200, 130, 70))]
CACHED = [288, 192, 128, 64]
"""What of `PROMPTS` can be cached: whole blocks, and not the last token."""

CROWD = [prompt(number, 150 + 11 * (number % 7), prompt(99, 96)) for number in range(14)]
FEW_BLOCKS = 36
"""Blocks of the device that are too few for `CROWD`, so that requests are preempted."""


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


def assert_same_words(rounds: Rounds, without: Rounds) -> None:
    for each in rounds:
        assert each["tokens"] == without[0]["tokens"]
