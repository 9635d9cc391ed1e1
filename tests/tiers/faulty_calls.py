"""System calls that fail, or end the process, when a test says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tiers.disk.system_calls import SystemCalls


class FailingPlaces(SystemCalls):
    """Everything in some directories fails, or what touches one byte of a slab.

    Attributes:
        failing: error number by directory.
        bad_sector: name of a slab and a place in it that cannot be read or written.
    """

    def __init__(self) -> None:
        self.failing: dict[Path, int] = {}
        self.failing_writes: dict[Path, int] = {}
        self.bad_sector: tuple[str, int] | None = None
        self.now = 10**15
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, flags: int) -> int:
        self._meet(path, is_write=bool(flags & os.O_CREAT))
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._meet(self._paths[fd], range(offset, offset + sum(map(len, buffers))), is_write=False)
        return super().preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        self._meet(self._paths[fd], range(offset, offset + sum(map(len, buffers))), is_write=True)
        return super().pwritev(fd, buffers, offset)

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        self._meet(self._paths[fd], is_write=True)
        super().allocate(fd, offset, num_bytes)

    def wall_microseconds(self) -> int:
        return self.now

    async def open_journal(self, path: Path) -> Any:
        self._meet(path, is_write=True)
        return await super().open_journal(path)

    async def append(self, journal: Any, data: bytes) -> None:
        self._meet(Path(journal.name), is_write=True)
        await super().append(journal, data)

    def _meet(self, path: Path, place: range = range(0), *, is_write: bool) -> None:
        for failing in (self.failing, self.failing_writes if is_write else {}):
            for directory, code in failing.items():
                if path.is_relative_to(directory):
                    raise OSError(code, os.strerror(code), str(path))
        if self.bad_sector is not None and path.name == self.bad_sector[0] and self.bad_sector[1] in place:
            raise OSError(5, "bad sector", str(path))


class KilledAt(SystemCalls):
    """Ends the process with SIGKILL at one step of one of the calls of a kind."""

    STEPS = (
        "before data",
        "mid data",
        "after data",
        "before growth",
        "after growth",
        "mid journal start",
        "mid journal",
        "after journal",
        "mid snapshot",
        "after snapshot",
        "before rename",
        "after rename",
    )

    def __init__(self, step: str, countdown: int) -> None:
        assert step in self.STEPS
        self._step = step
        self._countdown = countdown

    def _at(self, step: str) -> bool:
        if step != self._step:
            return False
        self._countdown -= 1
        return self._countdown == 0

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _step_by(self, step: str) -> None:
        if self._at(step):
            self._die()

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if "slab-" not in os.readlink(f"/proc/self/fd/{fd}"):
            return super().pwritev(fd, buffers, offset)
        self._step_by("before data")
        if self._at("mid data"):
            super().pwritev(fd, buffers[: len(buffers) // 2], offset)
            self._die()
        moved = super().pwritev(fd, buffers, offset)
        self._step_by("after data")
        return moved

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        self._step_by("before growth")
        super().allocate(fd, offset, num_bytes)
        self._step_by("after growth")

    async def append(self, journal: Any, data: bytes) -> None:
        if self._at("mid journal start" if data.startswith(b"KVTJRNL") else "mid journal"):
            await super().append(journal, data[: len(data) // 2])
            self._die()
        await super().append(journal, data)
        self._step_by("after journal")

    async def write_file(self, path: Path, data: bytes) -> None:
        if self._at("mid snapshot"):
            await super().write_file(path, data[: len(data) // 2])
            self._die()
        await super().write_file(path, data)
        self._step_by("after snapshot")

    async def replace(self, source: Path, target: Path) -> None:
        self._step_by("before rename")
        await super().replace(source, target)
        self._step_by("after rename")
