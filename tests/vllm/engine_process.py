"""Plans of engines, played by processes of their own, and what goes into them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or importlib.util.find_spec("vllm.version") is None,
    reason="vLLM is not installed here; make test-vllm sets it up",
)


@dataclass
class Engines:
    """Plays plans of `serve_rounds.py` in processes that import what this one would.

    Attributes:
        environment: of those processes.
        running: those that were not waited for.
    """

    environment: dict[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def play(self, *engines: dict[str, Any], **environment: str) -> list[list[dict[str, Any]]]:
        """Return per engine what its rounds have said, after the process has ended."""
        process, answers = self.start(*engines, **environment)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
        return answers

    def start(
        self, *engines: dict[str, Any], **environment: str
    ) -> tuple[subprocess.Popen[str], list[list[dict[str, Any]]]]:
        """Return the process, still alive with all its engines played, and what they have said."""
        log = Path(self.environment["ENGINE_LOG"])
        with log.open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "serve_rounds.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**self.environment, **environment},
            )
        self.running.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(engines) + "\n")
        process.stdin.flush()
        said = []
        for line in process.stdout:
            if line.startswith("ROUND "):
                said.append(json.loads(line.removeprefix("ROUND ")))
            if line == "DONE\n":
                break
        else:
            pytest.fail("the engines did not come to their end:\n" + log.read_text()[-4000:])
        rounds = iter(said)
        return process, [[next(rounds) for _ in engine["rounds"]] for engine in engines]


def make_model(folder: Path, seed: int) -> Path:
    """Save a tiny random model with weights of this seed."""
    subprocess.run(
        [sys.executable, str(HERE / "tiny_model.py"), str(folder), str(seed)], check=True, capture_output=True
    )
    return folder


def prompt(number: int, num_tokens: int, shared: Sequence[int] = ()) -> list[int]:
    """Return a prompt of this length that begins with ``shared`` and is unlike that of any other number."""
    own = [3 + (number * 7919 + position * position * 31 + position * 13) % 500 for position in range(num_tokens)]
    return [*shared, *own][:num_tokens]
