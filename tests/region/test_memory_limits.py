from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiering.errors import RegionError
from tiering.region.memory_limits import check_room, find_limits


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def limits(root: Path, directory: Path) -> dict[str, int]:
    found = find_limits(directory, root)
    assert found[0].where == str(directory)
    assert found[0].available_bytes > 0
    return {limit.where.replace(str(root), ""): limit.available_bytes for limit in found[1:]}


def test_control_groups_bound_each_other(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/pod/engine"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/engine\n",
            f"{group}/memory.max": "9000\n",
            f"{group}/memory.current": "5000\n",
            f"{group}/memory.stat": "anon 4000\ninactive_file 700\nfile 900\n",
            "sys/fs/cgroup/pod/memory.max": "6000\n",
            "sys/fs/cgroup/pod/memory.current": "6500\n",
            "sys/fs/cgroup/memory.current": "7000\n",
        },
    )
    assert limits(tmp_path, tmp_path) == {f"control group /{group}": 4700, "control group /sys/fs/cgroup/pod": 0}
    write(tmp_path, {f"{group}/memory.max": "max\n"})
    assert list(limits(tmp_path, tmp_path)) == ["control group /sys/fs/cgroup/pod"]


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/docker/abc"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/abc\n0::/\n",
            "proc/meminfo": "MemTotal:  99 kB\nMemAvailable:   40 kB\nSwapFree:  2 kB\nHugePages_Total:   0\n",
            f"{group}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/memory.usage_in_bytes": "1000\n",
            f"{group}/memory.stat": "inactive_file 1\ntotal_inactive_file 10\n",
        },
    )
    expected = {"this machine": 42 * 1024, f"control group /{group}": 9223372036854771712 - 990}
    assert limits(tmp_path, tmp_path) == expected


def test_nothing_to_be_seen_is_no_limit(tmp_path: Path) -> None:
    assert limits(tmp_path, tmp_path) == {}


def test_the_tightest_limit_is_named(directory: Path) -> None:
    check_room(directory / "tiering_e.mmap", 1)
    stat = os.statvfs(directory)
    with pytest.raises(RegionError, match=r"tiering_e\.mmap needs \d+ bytes .* but .* has \d+ bytes"):
        check_room(directory / "tiering_e.mmap", stat.f_blocks * stat.f_frsize + 1)
