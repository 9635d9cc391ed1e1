"""Creating or joining the file of a region: whoever comes first creates it, all others wait until it is ready."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from tiering.errors import RegionError
from tiering.region.header import RegionHeader, RegionState, is_region, read_header, write_header
from tiering.region.layout import RegionLayout
from tiering.region.ownership import hold_life, is_named, nobody_lives, remove_name, remove_name_if_dead
from tiering.region.reclaim import reclaim_dead_regions
from tiering.region.reservation import creation_error, reserve_pages

__all__ = ["open_region"]

_POLL_SECONDS = 0.02


def open_region(path: Path, layout: RegionLayout, join_timeout: float) -> tuple[int, bool]:
    """Return a file descriptor of the ready region at ``path``, and whether this process created it.

    The descriptor holds this process's life (see ownership.py). Dead regions in the directory are removed first by
    the creator.

    Raises:
        RegionError: no space; another layout; the creator died, gave up, or is not ready within ``join_timeout``
            seconds. Nothing of this process is left behind.
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
    # The file gets its name only once it has its size, its header and our lock on it: nobody ever sees less, and a
    # creator killed before that leaves nothing.
    header = RegionHeader(layout, os.getpid(), RegionState.CREATING)
    created = False
    try:
        fd = os.open(path.parent, os.O_TMPFILE | os.O_RDWR, 0o600)
        try:
            hold_life(fd)
            os.ftruncate(fd, layout.file_bytes)
            write_header(fd, header)
            created = _give_name(fd, path) and _make_ready(fd, path, header)
        finally:
            if not created:
                os.close(fd)
    except OSError as error:
        raise creation_error(path, layout.file_bytes, error) from error
    return fd if created else None


def _make_ready(fd: int, path: Path, header: RegionHeader) -> bool:
    try:
        reserve_pages(fd, path, header.layout.total_bytes)
        write_header(fd, replace(header, state=RegionState.READY))
    except BaseException:
        _abandon(fd, path, header)
        raise
    return True


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
    """Wait until the open region is ready and hold it, or close it and say False where it was a dead one."""
    joined = False
    try:
        if is_region(fd) and remove_name_if_dead(fd, path):
            return False
        if _wait_until_ready(fd, path, layout, deadline):
            hold_life(fd)
            # All who lived may have left or died before we held on; then the file was emptied, or its name removed.
            joined = is_named(fd, path) and os.fstat(fd).st_size == layout.file_bytes
        return joined
    finally:
        if not joined:
            os.close(fd)


def _wait_until_ready(fd: int, path: Path, layout: RegionLayout, deadline: float) -> bool:
    """Say True once the region is ready, False where it was a dead one that another starter has removed."""
    while True:
        header = read_header(fd, path)
        creator = "its creator" if header is None else f"its creator (process {header.creator_pid})"
        if header is not None:
            if header.layout != layout:
                raise RegionError(
                    f"{path} has {header.layout} ({header.layout.file_bytes} bytes), but this process expects {layout} "
                    f"({layout.file_bytes} bytes); all processes of an engine need the same configuration"
                )
            if header.state is RegionState.READY:
                return True
            if header.state is RegionState.ABANDONED:
                raise RegionError(f"cannot join {path}: {creator} failed and removed it; its own error says why")
        if not is_named(fd, path):
            return False
        if nobody_lives(fd):
            _abandon(fd, path, header)
            raise RegionError(f"cannot join {path}: {creator} died before it was ready")
        if time.monotonic() >= deadline:
            raise RegionError(
                f"cannot join {path}: {creator} has not made it ready in time; expected {layout.file_bytes} bytes, the "
                f"file has {os.fstat(fd).st_size}"
            )
        time.sleep(_POLL_SECONDS)


def _abandon(fd: int, path: Path, header: RegionHeader | None) -> None:
    """Tell those who wait for the region that it will not come, and remove its name."""
    if header is not None:
        write_header(fd, replace(header, state=RegionState.ABANDONED))
    remove_name(fd, path)
