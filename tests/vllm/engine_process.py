"""Plans of engines, played by processes of their own, and what goes into them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or importlib.util.find_spec("vllm.version") is None,
    reason="vLLM is not installed here; make test-vllm sets it up",
)


def _not_expected(pid: int) -> None:
    pytest.fail(f"process {pid} pauses, but nobody has anything to do then")


@dataclass
class Engines:
    """Plays plans of `serve_rounds.py` in processes that import what this one would.

    Attributes:
        environment: of those processes.
        running: those that were not waited for.
    """

    environment: dict[str, str]
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def play(
        self,
        *engines: dict[str, Any],
        at_pause: Callable[[int], object] = _not_expected,
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> list[list[dict[str, Any]]]:
        """Return per engine what its rounds have said, after the process has ended. See `start`."""
        process, answers = self.start(*engines, at_pause=at_pause, prefix=prefix, **environment)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == 0
        return answers

    def start(
        self,
        *engines: dict[str, Any],
        at_pause: Callable[[int], object] = _not_expected,
        prefix: Sequence[str] = (),
        **environment: str,
    ) -> tuple[subprocess.Popen[str], list[list[dict[str, Any]]]]:
        """Return the process, still alive with all its engines played, and what they have said.

        Args:
            engines: the plans.
            at_pause: is called with the process id at each pause.
            prefix: a command that runs the process.
            environment: what differs from that of other processes.
        """
        log = Path(self.environment["ENGINE_LOG"])
        with log.open("a") as errors:
            process = subprocess.Popen(
                [*prefix, sys.executable, str(HERE / "serve_rounds.py")],
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
            if line == "PAUSE\n":
                at_pause(process.pid)
                process.stdin.write("\n")
                process.stdin.flush()
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
