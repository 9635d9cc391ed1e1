"""The main job, twice: a generated request trace through CPU rows, disk and a bucket, then again with an empty disk.

The bucket is served by a SeaweedFS of this script's own. The second process begins with empty CPU rows and an empty
disk, and finds in the bucket what the first one stored. Every chunk that comes back is compared byte for byte; the exit
code is not 0 if a single byte is wrong or anything is left over.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tiering.testing.object_servers import SeaweedServer

_REPLAY = ("replay", "--generate", "400", "--ranks", "2", "--row-bytes", "64KiB")
_LIVES = ("first process: empty tiers", "second process: empty CPU rows, an empty disk, the bucket as it was left")


def main(options: tuple[str, ...] = _REPLAY) -> int:
    """Run both replays; returns the first exit code that is not 0."""
    config = Path(__file__).with_name("three_tiers.yaml")
    with SeaweedServer() as bucket_server, tempfile.TemporaryDirectory(prefix="tiering-run-") as folder:
        bucket_server.make_bucket("kv-cache")
        for number, title in enumerate(_LIVES):
            print(f"\n== {title}", flush=True)
            environ = os.environ | {
                "AWS_ACCESS_KEY_ID": bucket_server.access_key,
                "AWS_SECRET_ACCESS_KEY": bucket_server.secret_key,
                "AWS_REGION": bucket_server.region,
                "TIERING__secondary_tier_configs__0__root_dirs__0": f"{folder}/disk-{number}",
                "TIERING__secondary_tier_configs__1__endpoint_url": bucket_server.endpoint_url,
            }
            command = [sys.executable, "-m", "tiering", *options, "--config", str(config)]
            done = subprocess.run(command, env=environ, check=False)
            if done.returncode:
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
