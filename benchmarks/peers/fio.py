"""fio, as the measure of what a directory's device can do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = ["FIO_WAYS", "Cost", "FioWay", "fio_version"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took to move all rows once: wall-clock seconds, and CPU seconds over all threads."""

    seconds: float
    cpu_seconds: float


class FioWay(NamedTuple):
    """How fio moves blocks: an I/O engine, threads, and requests that each keeps in flight."""

    engine: str
    threads: int
    depth: int

    def __str__(self) -> str:
        return f"fio {self.engine} {self.threads} x {self.depth}"

    def move(self, directory: Path, direction: str, block_bytes: int, num_bytes: int) -> Cost:
        """Write or read ``num_bytes`` of one file past the page cache; ``direction`` is fio's word."""
        share = num_bytes // self.threads // block_bytes * block_bytes
        command = ["fio", "--name=rows", f"--directory={directory}", "--filename=fio.data", f"--rw={direction}"]
        command += [f"--bs={block_bytes}", f"--size={share}", f"--offset_increment={share}"]
        command += [f"--ioengine={self.engine}", f"--numjobs={self.threads}", "--thread", f"--iodepth={self.depth}"]
        command += ["--direct=1", "--overwrite=1", "--group_reporting", "--output-format=json"]
        os.sync()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (job,) = json.loads(done.stdout)["jobs"]
        figures = job[direction]
        cpu_seconds = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1000
        # Scaled, because a share is a whole number of blocks.
        return Cost(num_bytes / figures["bw_bytes"], cpu_seconds * num_bytes / figures["io_bytes"])


FIO_WAYS = (FioWay("psync", 4, 1), FioWay("psync", 16, 1), FioWay("libaio", 1, 32), FioWay("libaio", 4, 16))


def fio_version() -> str:
    if shutil.which("fio") is None:
        sys.exit("fio is not installed here")
    return subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
