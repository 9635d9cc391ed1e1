"""What the disk tier asks of the operating system, in one place."""

from __future__ import annotations

import errno
import os
import stat
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
        """Open a regular file. Programs that this process starts do not inherit it.

        Raises:
            OSError: as the system says; also for a symbolic link, a pipe or anything else that is no file, which is
                left as it is.
        """
        # Without O_NONBLOCK a pipe would keep the caller waiting for its other end.
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.ENOTSUP, "not a regular file", str(path))
        except OSError:
            os.close(fd)
            raise
        return fd

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
