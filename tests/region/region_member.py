"""One process of a region, started and spoken to by the tests; run as a script it is that process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tiering.region import RegionLayout, SharedOffloadRegion, shared_region
from tiering.region.populate import Population


class Member:
    """The parent's handle on a member process. Every command is answered, so nothing here waits by the clock."""

    def __init__(
        self, directory: Path, instance_id: str, layout: RegionLayout, rank: int | None, *, stop_when: str = ""
    ) -> None:
        """Start the process; with ``stop_when="populating"`` it stops before that until `answer` is called."""
        shape = [layout.num_rows, layout.num_workers, layout.worker_page_bytes]
        arguments = json.dumps([str(directory), instance_id, shape, rank, stop_when])
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str) -> str:
        self.answer(command)
        return self.hear()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._close()

    def leave(self) -> int:
        """Let the process end in an orderly way, and return its exit code."""
        return self._close()

    def _close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()


def main() -> None:
    directory, instance_id, shape, rank, stop_when = json.loads(sys.argv[1])
    if stop_when == "populating":
        shared_region.Population = stop_before_populating
    layout = RegionLayout(*shape)
    try:
        region = SharedOffloadRegion(
            instance_id, layout.total_bytes, layout.num_rows, rank, layout.num_workers, layout.worker_page_bytes,
            directory=directory,
        )  # fmt: skip
    except OSError as error:
        say(f"{type(error).__name__}: {error}")
        return
    say("created" if region.is_creator else "joined")
    for line in sys.stdin:
        obey(region, *line.split())
        say("done")


def obey(region: SharedOffloadRegion, command: str, *arguments: str) -> None:
    if command == "fill":
        rank, page = region.rank or 0, region.layout.worker_page_bytes
        for row in region.row_views(range(region.num_blocks)):
            row[rank * page : (rank + 1) * page] = bytes([int(arguments[0])]) * page
    elif command == "unlink":
        region.unlink()
    elif command == "cleanup":
        region.cleanup()


def stop_before_populating(*arguments: Any) -> Population:
    say("populating")
    sys.stdin.readline()
    return Population(*arguments)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
