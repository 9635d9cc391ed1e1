"""Conversations with vLLM over CPU rows, a disk and a bucket, through four lives of the engine:

1. without tiering,
2. with tiering; all tiers are empty at first,
3. after a restart: the disk is as it was left,
4. after a restart with an empty disk, as on another machine: only the bucket is as it was left.

The device has room for little more than one conversation, as a busy engine has for each of its users, so every turn
finds its past in a tier or computes it again. The bucket is served by a SeaweedFS of this script's own.

Weights and KV are float32: in bf16 rounding depends on how many tokens are computed at a time, and now and then that
decides between two words, with or without tiering. The exit code is 1 if an answer differs from the one without
tiering, or if a tier has served nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from serve_conversations import BLOCK_TOKENS, SOURCES

from tiering.testing.object_servers import ObjectServer, SeaweedServer

BUCKET = "kv-cache"
COLUMNS = dict(zip(SOURCES, ("device", "CPU", "disk", "S3"), strict=True))


@dataclass(slots=True)
class Life:
    """One engine from its start to its end.

    Attributes:
        title: what is printed above it.
        expected: the source that this life is about; none: nothing can be cached.
        disk: name of the disk tier's folder; none: no tiering.
        turns: what it has said, as `serve_conversations.serve` yields it.
    """

    title: str
    expected: str | None = None
    disk: str | None = None
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def mean_first_token_seconds(self) -> float:
        return fmean(turn["first_token_seconds"] for turn in self.turns)

    @property
    def cached(self) -> dict[str, int]:
        return {source: sum(turn["cached"][source] for turn in self.turns) for source in SOURCES}


def main() -> int:
    """Play the lives in processes of their own, each answer compared with the first life's; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a model, or its name")
    parser.add_argument("--dtype", default="float32", help="of weights and KV (default: float32)")
    parser.add_argument("--device-blocks", type=int, default=16, help=f"blocks of {BLOCK_TOKENS} tokens on the device")
    options = parser.parse_args()
    lives = [
        Life("without tiering"),
        Life("with tiering, all tiers empty", "host", "disk"),
        Life("restarted; disk and bucket kept", "disk", "disk"),
        Life("restarted; only the bucket kept", "external_unspecified", "another-disk"),
    ]
    print(f"{options.model}, {options.dtype}; {options.device_blocks} blocks of {BLOCK_TOKENS} tokens on the device")
    with SeaweedServer() as server, tempfile.TemporaryDirectory(prefix="tiering-vllm-") as folder:
        server.make_bucket(BUCKET)
        for life in lives:
            play(life, options, Path(folder), server, lives[0].turns)
    return summarise(lives)


def play(
    life: Life, options: argparse.Namespace, folder: Path, server: ObjectServer, reference: list[dict[str, Any]]
) -> None:
    """Play one life in a new process and print its turns as they come."""
    engine = {
        "model": options.model,
        "dtype": options.dtype,
        "device_blocks": options.device_blocks,
        "tiering": None if life.disk is None else tiers(folder / life.disk, server),
    }
    columns = "".join(f"{title:>9}" for title in (*COLUMNS.values(), "computed"))
    print(f"\n== {life.title}\nturn conversation prompt{columns}  first token   answer", flush=True)
    for turn in turns_of(engine, server, folder / "engine.log"):
        life.turns.append(turn)
        cached = [turn["cached"][source] for source in SOURCES]
        tokens = "".join(f"{number:9}" for number in (*cached, turn["prompt_tokens"] - sum(cached)))
        shown = shorten(turn["answer"])
        if life.turns is not reference:
            is_equal = turn["answer"] == reference[len(life.turns) - 1]["answer"]
            shown = "equal" if is_equal else f"DIFFERENT: {shown}"
        print(
            f"{turn['turn']:4}{turn['conversation']:13}{turn['prompt_tokens']:7}{tokens}"
            f"{turn['first_token_seconds'] * 1000:10.0f} ms   {shown}",
            flush=True,
        )


def tiers(disk: Path, server: ObjectServer) -> dict[str, Any]:
    """Configure CPU rows, a disk and a bucket; the credentials come by the environment."""
    return {
        "cpu_bytes_to_use": "512MiB",
        "secondary_tier_configs": [
            {"type": "disk", "root_dirs": [str(disk)], "capacity": "2GiB"},
            {"type": "s3", "bucket": BUCKET, "endpoint_url": server.endpoint_url},
        ],
    }


def turns_of(engine: dict[str, Any], server: ObjectServer, log: Path) -> Iterator[dict[str, Any]]:
    """Start the engine, and yield its turns as it ends them.

    Raises:
        SystemExit: it failed; the end of its log is shown.
    """
    environ = os.environ | {
        "AWS_ACCESS_KEY_ID": server.access_key,
        "AWS_SECRET_ACCESS_KEY": server.secret_key,
        "AWS_REGION": server.region,
    }
    command = [sys.executable, str(Path(__file__).with_name("serve_conversations.py")), json.dumps(engine)]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environ) as process,
    ):
        for line in process.stdout or ():
            if line.startswith("TURN "):
                yield json.loads(line.removeprefix("TURN "))
    if process.returncode:
        sys.exit(f"{log.read_text(errors='replace')[-6000:]}\nthe engine has ended with {process.returncode}")


def shorten(answer: str, length: int = 60) -> str:
    """Return the beginning of an answer, on one line."""
    line = " ".join(answer.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def summarise(lives: list[Life]) -> int:
    """Print a line per life; returns the exit code."""
    reference = lives[0]
    columns = "".join(f"{title:>9}" for title in (*COLUMNS.values(), "computed"))
    print(f"\n== prompt tokens by where their KV came from\n{'':33}{columns}  mean first token")
    num_different = 0
    unused = []
    for life in lives:
        num_different += sum(a["answer"] != b["answer"] for a, b in zip(life.turns, reference.turns, strict=True))
        if life.expected is not None and not life.cached[life.expected]:
            unused.append(COLUMNS[life.expected])
        num_prompt = sum(turn["prompt_tokens"] for turn in life.turns)
        tokens = "".join(f"{number:9}" for number in (*life.cached.values(), num_prompt - sum(life.cached.values())))
        seconds = life.mean_first_token_seconds
        ratio = seconds / reference.mean_first_token_seconds
        print(f"{life.title:33}{tokens}{seconds * 1000:10.0f} ms, {ratio:.2f} of that without tiering")
    for tier in unused:
        print(f"\nnothing came from: {tier}")
    print(f"\n{f'{num_different} answers DIFFER' if num_different else 'all answers are equal'}")
    return int(bool(num_different or unused))


if __name__ == "__main__":
    sys.exit(main())
