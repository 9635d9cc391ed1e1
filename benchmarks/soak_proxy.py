"""The object store of the soak: a real server, behind a proxy that misbehaves to order, in processes of their own."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from dataclasses import replace
from types import TracebackType
from typing import Any

from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault, ProxiedRequest
from tiering.testing.object_servers import SeaweedServer

__all__ = ["HTTP_FAULTS", "FaultyStore"]

_BUCKET = "soak"
_SHARE = 0.3

HTTP_FAULTS = {
    "delay": HttpFault(delay_seconds=0.2),
    "5xx": HttpFault(status=503),
    "reset": HttpFault(reset=True),
    "stall": HttpFault(stall=True),
    "cut body": HttpFault(method="GET", cut_after=5_000),
    "flipped byte": HttpFault(method="GET", flip_at=10_000),
    "another body": HttpFault(method="GET", replace_body=b"<html>sign in to the network</html>"),
    "throttle": HttpFault(method="GET", bytes_per_second=20_000),
}
"""By name, what goes wrong with so many of the requests."""


class FaultyStore:
    """A SeaweedFS server with a bucket, and a proxy in front of it. A context manager.

    Raises, when it is entered:
        ServerNotAvailableError: the server is not installed or does not come up.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._server = SeaweedServer()

    def __enter__(self) -> FaultyStore:
        self._server.__enter__()
        self._server.make_bucket(_BUCKET)
        self._proxy = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.soak_proxy", self._server.endpoint_url, str(self._seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._url = self._ask()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._proxy.communicate()  # it ends with its input
        self._server.__exit__(error_type, error, traceback)

    def settings(self) -> dict[str, Any]:
        """Return what a tier needs to reach the bucket through the proxy."""
        return {
            "bucket": _BUCKET,
            "endpoint_url": self._url,
            "region": self._server.region,
            "access_key_id": self._server.access_key,
            "secret_access_key": self._server.secret_key,
        }

    def switch(self, fault: str) -> int:
        """Let one of `HTTP_FAULTS` happen from now on, or nothing; return how often the one before has happened."""
        assert self._proxy.stdin is not None
        self._proxy.stdin.write(f"{fault}\n")
        self._proxy.stdin.flush()
        return int(self._ask())

    def _ask(self) -> str:
        assert self._proxy.stdout is not None
        return self._proxy.stdout.readline().strip()


def main(upstream_url: str, seed: int) -> None:
    """Print where the proxy is; then read names of faults, and answer each with how often the last one has happened."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # clients have gone before their answer came
    draw = random.Random(seed)
    num_faults = 0

    def is_drawn(request: ProxiedRequest) -> bool:
        nonlocal num_faults
        drawn = draw.random() < _SHARE
        num_faults += drawn
        return drawn

    with FaultProxy(upstream_url) as proxy:
        print(proxy.url, flush=True)
        for line in sys.stdin:
            proxy.clear()
            proxy.requests.clear()
            print(num_faults, flush=True)
            num_faults = 0
            if line.strip():
                proxy.add(replace(HTTP_FAULTS[line.strip()], matches=is_drawn))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
