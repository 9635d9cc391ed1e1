"""The replay command as a process of its own, in a session of its own, so that nothing of it can hide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSTALLED = Path(__file__).parent / "installed"
CHECKOUT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    errors: str

    @property
    def report(self) -> dict[str, Any]:
        assert self.code == 0, self.errors
        return json.loads(self.output)


class ReplayCommand:
    """A running ``tiering replay``."""

    def __init__(self, *arguments: object) -> None:
        path = os.pathsep.join((str(CHECKOUT), str(INSTALLED), os.environ.get("PYTHONPATH", "")))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tiering", "replay", "--format", "json", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            start_new_session=True,
        )

    def end(self) -> Ended:
        """Wait until the command has ended, and then all else that it has started."""
        output, errors = self.process.communicate(timeout=240)
        wait_until(lambda: not self.session())  # the resource tracker of multiprocessing goes last
        return Ended(self.process.returncode, output, errors)

    def ranks(self) -> list[int]:
        return [pid for pid in self.session() if b"spawn_main" in _read(pid, "cmdline")]

    def session(self) -> list[int]:
        """Return the processes of the session that have not ended."""
        return [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._lives_in_session(pid)]

    def signal_all(self, number: int) -> None:
        """Send a signal to every process of the command, as a terminal does."""
        os.killpg(self.process.pid, number)

    def kill_all(self) -> None:
        """SIGKILL to every process of the command; returns when they are gone."""
        if self.session():
            self.signal_all(signal.SIGKILL)
        self.process.communicate()
        wait_until(lambda: not self.session())

    def _lives_in_session(self, pid: int) -> bool:
        # Behind the name in parentheses: state, parent, process group, session.
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        return bool(fields) and fields[0] not in (b"Z", b"X") and int(fields[3]) == self.process.pid


def run_replay(*arguments: object) -> Ended:
    """Run the command to its end."""
    return ReplayCommand(*arguments).end()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.005)


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
