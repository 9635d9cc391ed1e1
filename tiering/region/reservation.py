"""Taking the memory of a region for good, so that a full directory is an error at start and not a SIGBUS later."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tiering.errors import RegionError
from tiering.quantities import format_bytes

__all__ = ["creation_error", "free_bytes", "reserve_pages"]

_PIECE_BYTES = 256 * 1024 * 1024


def free_bytes(directory: Path) -> int:
    """Return how many bytes this process may still allocate in the file system of ``directory``."""
    stat = os.statvfs(directory)
    return stat.f_bavail * stat.f_frsize


def reserve_pages(fd: int, path: Path, num_bytes: int) -> None:
    """Allocate the first ``num_bytes`` of the open file.

    Fresh shared memory costs about 0.6 seconds per GiB.

    Raises:
        OSError: ENOSPC where there is not enough space, or what else the kernel said; pages allocated until then stay
            with the file.
    """
    if free_bytes(path.parent) < num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # In pieces, because a signal undoes the piece in progress and starts it again.
    for offset in range(0, num_bytes, _PIECE_BYTES):
        os.posix_fallocate(fd, offset, min(_PIECE_BYTES, num_bytes - offset))


def creation_error(path: Path, num_bytes: int, error: OSError) -> RegionError:
    """Return the error to raise where ``error`` stopped the creation; call it once nothing is allocated any more."""
    if error.errno != errno.ENOSPC:
        return RegionError(f"cannot create region {path}: {error.strerror}")
    available = free_bytes(path.parent)
    return RegionError(
        f"{path} needs {num_bytes} bytes ({format_bytes(num_bytes)}), but {path.parent} has {available} bytes "
        f"({format_bytes(available)}) available; lower cpu_bytes_to_use, or give {path.parent} more space (in a "
        "container its size is an option such as --shm-size)"
    )
