"""The main job, twice: a generated request trace through CPU rows and disk, then again in a new process.

The second process begins with empty CPU rows and finds on the disk what the first one stored. Every chunk that comes
back is compared byte for byte; the exit code is not 0 if a single byte is wrong or anything is left over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

_REPLAY = ("replay", "--generate", "800", "--ranks", "2", "--row-bytes", "256KiB")


def main(options: tuple[str, ...] = _REPLAY) -> int:
    """Run both replays; returns the first exit code that is not 0."""
    config = Path(__file__).with_name("tiering.yaml")
    with tempfile.TemporaryDirectory(prefix="tiering-run-") as folder:
        environ = os.environ | {"TIERING__secondary_tier_configs__0__root_dirs__0": folder}
        for title in ("first process: empty tiers", "second process: empty CPU rows, the disk as it was left"):
            print(f"\n== {title}", flush=True)
            command = [sys.executable, "-m", "tiering", *options, "--config", str(config)]
            done = subprocess.run(command, env=environ, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
