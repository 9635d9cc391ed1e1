from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from replay_command import ReplayCommand
from replay_setup import ReplaySetup


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[ReplaySetup]:
    """A configuration with a disk tier, over directories of its own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as shared_memory:
        yield ReplaySetup(tmp_path, Path(shared_memory))


@pytest.fixture
def start() -> Iterator[Callable[..., ReplayCommand]]:
    """Starts replay commands, and kills what is left of them at the end."""
    with ExitStack() as stack:

        def start_one(*arguments: object) -> ReplayCommand:
            command = ReplayCommand(*arguments)
            stack.callback(command.kill_all)
            return command

        yield start_one


@pytest.fixture
def mount_tmpfs() -> Iterator[Callable[[Path, int], None]]:
    """Puts a file system in memory with room for so many bytes over a directory; skips where this may not be done."""
    with ExitStack() as stack:

        def mount(directory: Path, num_bytes: int) -> None:
            command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tiering-test", str(directory)]
            if subprocess.run(command, capture_output=True, check=False).returncode:
                pytest.skip("this user may not mount a tmpfs")
            stack.callback(subprocess.run, ["umount", "--lazy", str(directory)], check=True)

        yield mount
