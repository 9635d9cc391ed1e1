from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiering.testing import ResourceWatch

INSTALLED = Path(__file__).parent / "installed"


@pytest.fixture(autouse=True)
def tiers_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(INSTALLED)


@pytest.fixture
def shared_memory() -> Iterator[Path]:
    """A directory in shared memory, in which no file may be left, as no thread and no descriptor of this process."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as name, ResourceWatch(name):
        yield Path(name)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """The file that makes a hostile tier do its deed."""
    trap = tmp_path / "trap"
    trap.touch()
    return trap
