"""A process that ends without having shut anything down: soon, silently, and leaving nothing in shared memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "exit_program.py"


@pytest.mark.parametrize(
    ("how", "returncode", "last_line"),
    [
        ("return", 0, ""),
        ("exit in a thread", 0, ""),
        ("exception", 1, "KeyError: 'the engine has failed'"),
        ("SIGTERM", -15, ""),
        ("SIGINT", -2, "KeyboardInterrupt"),
    ],
)
def test_tc_67_the_interpreter_ends_without_a_shutdown(
    how: str, returncode: int, last_line: str, tmp_path: Path
) -> None:
    (tmp_path / "region").mkdir()
    (tmp_path / "disk").mkdir()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), how], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (returncode, "running\n"), done.stderr
    lines = done.stderr.splitlines()
    assert (lines[-1] if lines else "") == last_line
    assert sum(line.startswith("Traceback") for line in lines) == (1 if last_line else 0), done.stderr
    assert list((tmp_path / "region").iterdir()) == []
