"""Names of region files, and the removal of those whose engines are dead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tiering.region.header import is_region
from tiering.region.ownership import remove_name_if_dead

__all__ = ["reclaim_dead_regions", "region_path"]

_INSTANCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")


def region_path(directory: str | Path, instance_id: str) -> Path:
    """Return where the region of ``instance_id`` lies.

    Raises:
        ValueError: the id cannot be part of a file name.
    """
    if not _INSTANCE_ID.fullmatch(instance_id):
        raise ValueError(
            f"instance id {instance_id!r}: allowed are 1 to 200 letters, digits and . _ : -, a letter or digit first"
        )
    return Path(directory) / f"tiering_{instance_id}.mmap"


def reclaim_dead_regions(directory: str | Path) -> list[Path]:
    """Remove the region files in ``directory`` that no living process holds, and return their paths.

    Files that are no regions, or belong to another user, are left alone. May run at any time beside living engines.
    """
    return [path for path in sorted(Path(directory).glob("tiering_*.mmap")) if _reclaim(path)]


def _reclaim(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return is_region(fd) and remove_name_if_dead(fd, path)
    except PermissionError:
        return False
    finally:
        os.close(fd)
