"""An engine in a process of its own, which never shuts down: says which process its tier runs in, and goes on."""

from __future__ import annotations

import sys
from pathlib import Path

from isolation_rig import ROW_BYTES, key
from test_process_deaths import hostile

from tiering.isolation import IsolatedTier
from tiering.naming import Namespace
from tiering.region import SharedOffloadRegion
from tiering.secondary_tier import TransferJob


def main(shared_memory: Path, trap: Path) -> None:
    region = SharedOffloadRegion("e", 4 * ROW_BYTES, 4, None, 1, ROW_BYTES, directory=shared_memory)
    tier = IsolatedTier(hostile("block", trap), region, Namespace("model", row_bytes=ROW_BYTES))
    tier.submit_load(TransferJob(0, (key(0),), (0,)))  # blocks it if the trap is there
    print(tier.pid, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
