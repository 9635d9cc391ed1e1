"""Who lives: locks on a region file, all dropped by the kernel when their process dies, however it dies.

Each process of a region holds a shared ``flock`` on the file, taken before the file has a name (creator) or before it
is mapped (joiner), and kept for life. Whoever gets an exclusive ``flock`` therefore knows that nobody lives. Beside
it, byte-range locks of the open file keep one process per rank, and one at a time removing the name.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiering.errors import RegionError

__all__ = [
    "give_up_life",
    "hold_life",
    "is_named",
    "is_seat_taken",
    "nobody_lives",
    "remove_name",
    "remove_name_if_dead",
    "take_seat",
]

# Byte ranges that are locked, not bytes that are written; the numbers mean nothing to the file's content.
_NAME_BYTE = 0
_FIRST_SEAT_BYTE = 1

_FLOCK = "hhqqi0q"
"""struct flock of 64-bit Linux: type, whence, start, length, pid (must be 0 here)."""


def hold_life(fd: int) -> None:
    """Count this process among the living users of the file, until `give_up_life` or its death.

    Waits only for a process that is looking whether anybody lives, which takes microseconds.
    """
    fcntl.flock(fd, fcntl.LOCK_SH)


def nobody_lives(fd: int) -> bool:
    """Say whether no process holds the file; if so, keep others from entering until ``fd`` is closed.

    A process that held its own life through ``fd`` holds it no longer, whatever the answer.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def give_up_life(fd: int, path: Path, seat: int) -> None:
    """Leave the region; the last one to leave removes its name. The caller closes ``fd`` or holds a life again."""
    _byte_lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _FIRST_SEAT_BYTE + seat)
    if nobody_lives(fd):
        remove_name(fd, path)


def take_seat(fd: int, path: Path, seat: int, seat_name: str) -> None:
    """Be the only process in ``seat`` (0 scheduler, 1 + rank a worker) until `give_up_life` or death.

    Raises:
        RegionError: a living process sits there; two writers of one column would mix their bytes.
    """
    try:
        _byte_lock(fd, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, _FIRST_SEAT_BYTE + seat)
    except BlockingIOError:
        raise RegionError(
            f"{path} already has a living process as {seat_name}: another engine uses this instance id, or an earlier "
            "one has not ended"
        ) from None


def is_seat_taken(fd: int, seat: int) -> bool:
    """Say whether a living process sits in ``seat``; our own seat looks free to us."""
    answer = _byte_lock(fd, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, _FIRST_SEAT_BYTE + seat)
    return int(struct.unpack(_FLOCK, answer)[0]) != fcntl.F_UNLCK


def is_named(fd: int, path: Path) -> bool:
    """Say whether ``path`` still names the open file."""
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(named, os.fstat(fd))


def remove_name(fd: int, path: Path) -> bool:
    """Remove ``path`` if it still names the open file; the caller holds its life, or knows that nobody lives."""
    with _name_lock(fd):
        if not is_named(fd, path):
            return False
        path.unlink()
        return True


def remove_name_if_dead(fd: int, path: Path) -> bool:
    """Remove the name of a file that nobody holds; say whether it was removed. ``fd`` must not hold a life."""
    if not nobody_lives(fd):
        return False
    # Its memory must be free before its name is: others who look at the dead file have it open, and the next creator
    # may need that memory at once.
    os.ftruncate(fd, 0)
    return remove_name(fd, path)


@contextmanager
def _name_lock(fd: int) -> Iterator[None]:
    # Without it, two living users could both see their file under the name, and the slower one would then remove the
    # file that a third process has meanwhile created there.
    _byte_lock(fd, fcntl.F_OFD_SETLKW, fcntl.F_WRLCK, _NAME_BYTE)
    try:
        yield
    finally:
        _byte_lock(fd, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _NAME_BYTE)


def _byte_lock(fd: int, command: int, kind: int, byte: int) -> bytes:
    return fcntl.fcntl(fd, command, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
