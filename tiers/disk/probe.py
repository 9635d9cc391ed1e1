"""What a directory can do right now: direct I/O, plain I/O, reads only, or nothing."""

from __future__ import annotations

import enum
import errno
import mmap
import os
from pathlib import Path

from tiers.disk.header import PAGE_BYTES
from tiers.disk.system_calls import SystemCalls

__all__ = ["Health", "inode_of", "probe", "supports_direct_io", "supports_direct_reads"]


class Health(enum.Enum):
    """What a root is good for."""

    GOOD = enum.auto()
    READ_ONLY = enum.auto()
    """It takes no writes; what is there can perhaps be read."""
    DEAD = enum.auto()
    """It is not there any more, or another directory is in its place."""


def probe(directory: Path, inode: tuple[int, int], system: SystemCalls) -> tuple[Health, str]:
    """Write and read back a page; return what works, and what was said where something does not. Blocks.

    A full disk is in good health: it can take what overwrites. ``inode`` is what `inode_of` said when the directory
    was opened.
    """
    try:
        if inode_of(directory) != inode:
            return Health.DEAD, "another directory is in its place"
        _move_a_page(directory / "health.probe", system, 0)
    except FileNotFoundError as error:
        return Health.DEAD, str(error)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return Health.GOOD, str(error)
        return Health.READ_ONLY, str(error)
    return Health.GOOD, ""


def inode_of(directory: Path) -> tuple[int, int]:
    """Return device and inode number. Blocks.

    Raises:
        OSError: as the system says.
    """
    status = directory.stat()
    return status.st_dev, status.st_ino


def supports_direct_io(directory: Path, system: SystemCalls) -> bool:
    """Say whether a page can really be written to and read from a file in ``directory`` past the page cache. Blocks.

    Raises:
        OSError: the directory does not take files at all.
    """
    try:
        _move_a_page(directory / "direct-io.probe", system, os.O_DIRECT)
    except OSError as error:
        # A full disk has not said no; if it says so later, the slabs go on with buffered I/O by themselves.
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
            return False
        raise
    return True


def supports_direct_reads(directory: Path, system: SystemCalls) -> bool:
    """Say whether the slabs in ``directory``, which takes no new file, can be read past the page cache. Blocks."""
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    for path in directory.glob("slab-*.kv"):
        try:
            fd = system.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            return False
        try:
            system.preadv(fd, [page], 0)
        except OSError as error:
            return error.errno != errno.EINVAL
        finally:
            os.close(fd)
        return True
    return False


def _move_a_page(path: Path, system: SystemCalls, flags: int) -> None:
    page = memoryview(mmap.mmap(-1, PAGE_BYTES))
    fd = system.open(path, os.O_RDWR | os.O_CREAT | flags)
    try:
        if not system.pwritev(fd, [page], 0) == PAGE_BYTES == system.preadv(fd, [page], 0):
            raise OSError(errno.EINVAL, "short read or write", str(path))
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
