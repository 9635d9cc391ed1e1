"""What the disk tier asks of the operating system, in one place."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import aiofiles
import aiofiles.os
from aiofiles.threadpool.binary import AsyncFileIO

__all__ = ["SystemCalls"]


class SystemCalls:
    """The calls that touch chunks and index files. A test hands the tier another one, which fails or kills on purpose.

    The plain methods block and may run on several threads at once; the coroutines run on the event loop thread.
    """

    def open(self, path: Path, flags: int) -> int:
        """See `os.open`; descriptors are not inherited by programs this process starts."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `os.preadv`."""
        return os.preadv(fd, buffers, offset)

    def pwritev(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """See `os.pwritev`."""
        return os.pwritev(fd, buffers, offset)

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        """See `os.posix_fallocate`."""
        os.posix_fallocate(fd, offset, num_bytes)

    def wall_microseconds(self) -> int:
        """Return the time of day; it may jump, also backwards."""
        return time.time_ns() // 1000

    async def open_journal(self, path: Path) -> AsyncFileIO:
        """Open a journal for `append`, and make it if it is not there."""
        return await aiofiles.open(path, "ab", buffering=0)

    async def append(self, journal: AsyncFileIO, data: bytes) -> None:
        """Write ``data`` behind the end of a journal.

        Raises:
            OSError: as the system says; also if the journal was removed meanwhile, for nobody would read it.
        """
        if await journal.write(data) != len(data):
            raise OSError(f"short write to {journal.name!r}")
        if os.fstat(journal.fileno()).st_nlink == 0:
            raise FileNotFoundError(f"{journal.name!r} was removed")

    async def write_file(self, path: Path, data: bytes) -> None:
        """Make a file, or replace the contents of an existing one."""
        async with aiofiles.open(path, "wb") as file:
            await file.write(data)

    async def replace(self, source: Path, target: Path) -> None:
        """See `os.replace`."""
        await aiofiles.os.replace(source, target)
