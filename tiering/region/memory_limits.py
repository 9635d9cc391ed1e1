"""How much memory a region may take, asked before any is taken: a region that does not fit is an error at start."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiering.errors import RegionError

__all__ = ["MemoryLimit", "check_room", "find_limits", "no_room"]


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Something that bounds the memory of this process's region.

    Attributes:
        where: what it is, for messages.
        available_bytes: how much it still allows.
    """

    where: str
    available_bytes: int


@dataclass(frozen=True, slots=True)
class _CgroupFiles:
    """The names that one version of control groups gives its files."""

    line: re.Pattern[str]
    root: str
    limit: str
    usage: str
    reclaimable: str


_CGROUP_VERSIONS = (
    _CgroupFiles(re.compile(r"^0::(/.*)$", re.M), "", "memory.max", "memory.current", "inactive_file"),
    _CgroupFiles(
        re.compile(r"^\d+:memory:(/.*)$", re.M),
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def check_room(path: Path, num_bytes: int) -> None:
    """Check that a region of ``num_bytes`` at ``path`` fits.

    Raises:
        RegionError: it does not; the message names the limit, both numbers, and what to change.
        OSError: the directory cannot be asked.
    """
    tightest = min(find_limits(path.parent), key=lambda limit: limit.available_bytes)
    if tightest.available_bytes < num_bytes:
        raise no_room(path, num_bytes, tightest)


def no_room(path: Path, num_bytes: int, limit: MemoryLimit | None = None) -> RegionError:
    """Return the error to raise where a region does not fit; the limit is the tightest one unless it is known."""
    limit = limit or min(find_limits(path.parent), key=lambda limit: limit.available_bytes)
    return RegionError(
        f"{path} needs {num_bytes} bytes ({num_bytes / 2**20:,.1f} MiB), but {limit.where} has {limit.available_bytes} "
        f"bytes ({limit.available_bytes / 2**20:,.1f} MiB) available; lower cpu_bytes_to_use, or allow more (a "
        "container has options such as --shm-size and --memory)"
    )


def find_limits(directory: Path, root: Path = Path("/")) -> list[MemoryLimit]:
    """Return what bounds the memory that this process takes in ``directory``.

    Args:
        directory: in a file system in memory.
        root: where ``proc`` and ``sys`` are.
    """
    stat = os.statvfs(directory)
    return [
        MemoryLimit(str(directory), stat.f_bavail * stat.f_frsize),
        *_machine_limits(root),
        *(limit for files in _CGROUP_VERSIONS for limit in _cgroup_limits(root, files)),
    ]


def _machine_limits(root: Path) -> Iterator[MemoryLimit]:
    fields = _numbers(root / "proc/meminfo", separator=":")
    if "MemAvailable" in fields:
        yield MemoryLimit("this machine", 1024 * (fields["MemAvailable"] + fields.get("SwapFree", 0)))


def _cgroup_limits(root: Path, files: _CgroupFiles) -> Iterator[MemoryLimit]:
    """Yield the limits of this process's control group and of those above it, as far as they can be seen."""
    found = files.line.search(_read(root / "proc/self/cgroup"))
    if found is None:
        return
    mount = root / "sys/fs/cgroup" / files.root
    own = mount / found[1].lstrip("/")
    for group in (own, *own.parents):
        if not group.is_relative_to(mount):
            return
        limit, usage = _read(group / files.limit).strip(), _read(group / files.usage).strip()
        if limit.isdigit() and usage.isdigit():
            reclaimable = _numbers(group / "memory.stat").get(files.reclaimable, 0)
            yield MemoryLimit(f"control group {group}", max(0, int(limit) - int(usage) + reclaimable))


def _numbers(file: Path, separator: str | None = None) -> dict[str, int]:
    pairs = (line.split(separator, 1) for line in _read(file).splitlines())
    return {pair[0]: int(pair[1].split()[0]) for pair in pairs if len(pair) == 2}


def _read(file: Path) -> str:
    # What cannot be seen from inside a container does not bound us as far as we can know.
    try:
        return file.read_text()
    except OSError:
        return ""
