"""Creating or joining the file of a region: whoever comes first creates it, all others join it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tiering.errors import RegionError
from tiering.region.header import RegionHeader, is_region, read_header, write_header
from tiering.region.layout import RegionLayout
from tiering.region.memory_limits import check_room
from tiering.region.ownership import hold_life, is_named, remove_name_if_dead
from tiering.region.reclaim import reclaim_dead_regions

__all__ = ["open_region"]

_POLL_SECONDS = 0.02


def open_region(path: Path, layout: RegionLayout, join_timeout: float) -> tuple[int, bool]:
    """Return a file descriptor of the region at ``path``, and whether this process created it.

    The descriptor holds this process's life (see ownership.py). No page of the region is allocated here. Dead regions
    in the directory are removed first by the creator.

    Raises:
        RegionError: it does not fit into memory; another layout; or what lies at ``path`` is not yet a region, is held
            by somebody, and does not become one within ``join_timeout`` seconds. Nothing of this process is left
            behind.
    """
    deadline = time.monotonic() + join_timeout
    while True:
        fd = _open_existing(path)
        if fd is None:
            fd = _create(path, layout)
            if fd is not None:
                return fd, True
        elif _join(fd, path, layout, deadline):
            return fd, False


def _open_existing(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RegionError(f"cannot open region {path}: {error.strerror}") from error


def _create(path: Path, layout: RegionLayout) -> int | None:
    """Create the region, or return None where another process was faster."""
    reclaim_dead_regions(path.parent)
    created = False
    try:
        check_room(path, layout.file_bytes)
        # The file gets its name only once it has its size, its header and our lock on it: nobody ever sees less, and a
        # creator killed before that leaves nothing.
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            hold_life(fd)
            os.ftruncate(fd, layout.file_bytes)
            write_header(fd, RegionHeader(layout, os.getpid()))
            created = _give_name(fd, path)
        finally:
            if not created:
                os.close(fd)
    except RegionError:
        if os.path.lexists(path):
            return None  # what does not fit any more is there already
        raise
    except OSError as error:
        raise RegionError(f"cannot create region {path}: {error.strerror}") from error
    return fd if created else None


def _give_name(fd: int, path: Path) -> bool:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        # With a directory descriptor Python calls linkat, which follows the link in /proc to the nameless file.
        os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        return False
    finally:
        os.close(directory)
    return True


def _join(fd: int, path: Path, layout: RegionLayout, deadline: float) -> bool:
    """Hold the open region, or close it and say False where it was a dead one or is not one yet."""
    joined = False
    try:
        if is_region(fd) and remove_name_if_dead(fd, path):
            return False
        header = read_header(fd, path)
        if header is None:
            # Emptied because it is dead, or a stub that somebody else holds; the next look at the path tells.
            if time.monotonic() >= deadline:
                raise RegionError(
                    f"cannot join {path}: expected {layout.file_bytes} bytes, the file has {os.fstat(fd).st_size} and "
                    "somebody holds it"
                )
            time.sleep(_POLL_SECONDS)
            return False
        if header.layout != layout:
            raise RegionError(
                f"{path} of process {header.creator_pid} has {header.layout} ({header.layout.file_bytes} bytes), but "
                f"this process expects {layout} ({layout.file_bytes} bytes); all processes of an engine need the same "
                "configuration"
            )
        hold_life(fd)
        # All who lived may have left or died before we held on; then the file was emptied, or its name removed.
        joined = is_named(fd, path) and os.fstat(fd).st_size == layout.file_bytes
        return joined
    finally:
        if not joined:
            os.close(fd)
