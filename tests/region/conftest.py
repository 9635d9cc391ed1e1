from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from region_member import Member

from tiering.region import RegionLayout, SharedOffloadRegion


@pytest.fixture
def directory() -> Iterator[Path]:
    """An empty directory in shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as name:
        yield Path(name)


@pytest.fixture
def mount_tmpfs(directory: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a file system in memory with room for so many bytes; skips where this user may not mount."""
    mounted = []

    def mount(num_bytes: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tiering-test", str(directory)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("this user may not mount a tmpfs")
        mounted.append(directory)
        return directory

    yield mount
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    """Starts member processes, and kills those that are left at the end."""
    with ExitStack() as stack:

        def start_one(*arguments: object, **options: str) -> Member:
            member = Member(*arguments, **options)  # type: ignore[arg-type]
            stack.callback(member.kill)
            return member

        yield start_one


@pytest.fixture
def open_region(directory: Path) -> Iterator[Callable[..., SharedOffloadRegion]]:
    """Opens regions in this process, and cleans them up at the end."""
    with ExitStack() as stack:

        def open_one(
            layout: RegionLayout, rank: int | None = None, instance_id: str = "e", **options: object
        ) -> SharedOffloadRegion:
            shape = (layout.num_rows, rank, layout.num_workers, layout.worker_page_bytes)
            options = {"directory": directory, **options}
            region = SharedOffloadRegion(instance_id, layout.total_bytes, *shape, **options)  # type: ignore[arg-type]
            stack.callback(region.cleanup)
            return region

        yield open_one
