from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mounts
import pytest
from disk_harness import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "root")


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[mounts.Faulty]:
    with mounts.faulty(tmp_path / "faulty") as file_system:
        yield file_system
