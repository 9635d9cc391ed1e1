"""The object tier against the client libraries below it, alone and as they come, on the same server."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import obstore
import s3fs
from obstore.store import S3Store

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.secondary_tier import TransferJob
from tiering.testing.ceph_server import CephServer
from tiering.testing.object_servers import MotoServer, ObjectServer, SeaweedServer
from tiering.testing.patterns import fill_row, row_matches
from tiers.s3.config import S3Config
from tiers.s3.tier import S3Tier

__all__ = ["measure"]

_ROW_SIZES = (2**20, 8 * 2**20)
_IN_FLIGHT = 16
_BUCKET = "benchmark"
_STEP_SECONDS = 0.002
_MOST_BYTES = 128 * 2**20
_MOST_ROUNDS = 5

_TUNED: dict[str, Any] = {
    "max_concurrency": 1,
    "config_kwargs": {
        "s3": {"payload_signing_enabled": False, "addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "max_pool_connections": _IN_FLIGHT,
    },
}


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure stores and loads for each row size, on SeaweedFS and, where it is installed, on Ceph.

    The server shares the machine, so only the ratios mean something.
    """
    server_types: list[type[ObjectServer]] = [SeaweedServer if SeaweedServer.is_installed() else MotoServer]
    if CephServer.is_installed():
        server_types.append(CephServer)
    for server_type in server_types:
        for row_bytes in _ROW_SIZES:
            rows = _Rows(max(1, min(scale.moved_bytes, _MOST_BYTES) // row_bytes), row_bytes)
            with server_type() as server:
                server.make_bucket(_BUCKET)
                yield from _compare(server, rows, min(scale.rounds, _MOST_ROUNDS))


def _compare(server: ObjectServer, rows: _Rows, rounds: int) -> Iterator[Comparison]:
    obstore_tier, obstore_alone = _OpenTier(server, rows, "obstore"), _Obstore(server, rows)
    s3fs_tier, s3fs_tuned, s3fs_default = (
        _OpenTier(server, rows, "s3fs"),
        _S3fs(server, rows, "tuned", **_TUNED),
        _S3fs(server, rows, "default"),
    )
    sides: tuple[_Side, ...] = (obstore_tier, obstore_alone, s3fs_tier, s3fs_tuned, s3fs_default)
    try:
        stored = alternate(rounds, *(side.store for side in sides))
        loaded = alternate(rounds, *(side.load for side in sides))
    finally:
        for side in sides:
            side.close()
    for case, seconds in (("store", stored), ("load", loaded)):
        took = dict(zip(sides, seconds, strict=True))
        for ours, other in ((obstore_tier, obstore_alone), (s3fs_tier, s3fs_tuned), (s3fs_tier, s3fs_default)):
            yield Comparison.per_byte(
                f"{case} {rows.row_bytes // 2**20} MiB, {ours.name}",
                f"{other.name} on {server.kind}, {other.cpu_seconds_per_gb(case):.2f} CPU s/GB",
                rows.num_bytes,
                took[ours],
                took[other],
                cpu_seconds=ours.cpu_seconds_per_gb(case) * rows.num_bytes / 1e9,
            )


class _Rows:
    """Memory, row after row."""

    def __init__(self, num_rows: int, row_bytes: int) -> None:
        self.row_bytes = row_bytes
        self.num_bytes = num_rows * row_bytes
        self.array = np.zeros((num_rows, row_bytes), np.uint8)
        self.views = [row.data for row in self.array]

    def select(self, rows: Sequence[int]) -> list[memoryview]:
        return [self.array[row].data for row in rows]


@dataclass(eq=False)
class _Side(ABC):
    """One way of storing and loading all rows; rows are filled and compared outside of the time taken."""

    server: ObjectServer
    rows: _Rows
    name: str
    cpu_seconds: dict[str, list[float]] = field(default_factory=lambda: {"store": [], "load": []})
    num_rounds: int = 0

    @property
    def keys(self) -> list[OffloadKey]:
        return [make_offload_key(b"%d" % self.num_rounds, row) for row in range(len(self.rows.views))]

    def store(self) -> float:
        self.num_rounds += 1
        for row, key in zip(self.rows.views, self.keys, strict=True):
            fill_row(row, key)
        return self._timed("store", self._store)

    def load(self) -> float:
        self.rows.array[:] = 0
        seconds = self._timed("load", self._load)
        self._collect()
        check(all(map(row_matches, self.rows.views, self.keys)), f"the bytes that {self.name} has loaded")
        return seconds

    def cpu_seconds_per_gb(self, case: str) -> float:
        return median(self.cpu_seconds[case][1:]) / (self.rows.num_bytes / 1e9)

    def _timed(self, case: str, work: Callable[[], None]) -> float:
        cpu_began, began = self._cpu_seconds(), time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        self.cpu_seconds[case].append(self._cpu_seconds() - cpu_began)
        return seconds

    def _cpu_seconds(self) -> float:
        return time.process_time()

    def _collect(self) -> None:
        """Bring into the rows what was loaded elsewhere."""

    @abstractmethod
    def _store(self) -> None: ...

    @abstractmethod
    def _load(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class _OpenTier(_Side):
    """The tier as the manager drives it: jobs go in, results are polled."""

    def __init__(self, server: ObjectServer, rows: _Rows, client: str) -> None:
        super().__init__(server, rows, f"tier over {client}")
        config = S3Config.model_validate(
            {
                "type": "s3",
                "bucket": _BUCKET,
                "prefix": client,
                "client": client,
                "endpoint_url": server.endpoint_url,
                "region": server.region,
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "limits": {"transfers": _IN_FLIGHT},
            }
        )
        self._worker = TierWorker(
            lambda context: S3Tier(config, context),
            JobLoop(),
            rows.select,
            name="s3",
            row_bytes=rows.row_bytes,
            namespace=Namespace("benchmark", row_bytes=rows.row_bytes),
        )

    def _store(self) -> None:
        self._run(self._worker.submit_store)

    def _load(self) -> None:
        self._run(self._worker.submit_load)

    def close(self) -> None:
        self._worker.shutdown()

    def _cpu_seconds(self) -> float:
        return time.process_time() - time.thread_time()  # this thread only polls, in the place of an engine

    def _run(self, submit: Callable[[TransferJob], None]) -> None:
        submit(TransferJob(1, tuple(self.keys), tuple(range(len(self.rows.views)))))
        while not (results := list(self._worker.get_finished_jobs())):
            time.sleep(_STEP_SECONDS)
        check(all(results[0].succeeded), f"every row of the {self.name}: {results[0].error}")


class _Alone(_Side):
    """A client library alone, with as many objects in flight; what it loads is not copied to the rows."""

    def __init__(self, server: ObjectServer, rows: _Rows, name: str) -> None:
        super().__init__(server, rows, name)
        self._loop = asyncio.new_event_loop()
        self._loaded: list[Any] = []

    def _collect(self) -> None:
        for row, data in zip(self.rows.array, self._loaded, strict=True):
            row[:] = np.frombuffer(data, np.uint8)
        self._loaded = []

    def _object_name(self, row: int) -> str:
        return f"{self.name}/{self.num_rounds}/{row}"

    def _store(self) -> None:
        self._for_each_row(self._put)

    def _load(self) -> None:
        self._loaded = self._for_each_row(self._get)

    def _for_each_row(self, operation: Callable[[int], Awaitable[Any]]) -> list[Any]:
        async def run() -> list[Any]:
            slots = asyncio.Semaphore(_IN_FLIGHT)

            async def one(row: int) -> Any:
                async with slots:
                    return await operation(row)

            return await asyncio.gather(*map(one, range(len(self.rows.views))))

        return self._loop.run_until_complete(run())

    def close(self) -> None:
        self._loop.close()

    @abstractmethod
    async def _put(self, row: int) -> Any: ...

    @abstractmethod
    async def _get(self, row: int) -> Any: ...


class _Obstore(_Alone):
    def __init__(self, server: ObjectServer, rows: _Rows) -> None:
        super().__init__(server, rows, "obstore alone")
        self._store_object = S3Store(
            _BUCKET,
            config={
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "region": server.region,
                "endpoint": server.endpoint_url,
                "virtual_hosted_style_request": False,
                "unsigned_payload": True,
            },
            client_options={"allow_http": True},
        )

    async def _put(self, row: int) -> Any:
        body = self.rows.views[row]
        return await obstore.put_async(self._store_object, self._object_name(row), body, use_multipart=False)

    async def _get(self, row: int) -> Any:
        return await (await obstore.get_async(self._store_object, self._object_name(row))).bytes_async()


class _S3fs(_Alone):
    def __init__(self, server: ObjectServer, rows: _Rows, how: str, **settings: Any) -> None:
        super().__init__(server, rows, f"s3fs {how}")
        self._fs = self._loop.run_until_complete(self._connect(settings))

    async def _connect(self, settings: dict[str, Any]) -> Any:
        fs = s3fs.S3FileSystem(
            key=self.server.access_key,
            secret=self.server.secret_key,
            endpoint_url=self.server.endpoint_url,
            client_kwargs={"region_name": self.server.region},
            asynchronous=True,
            skip_instance_cache=True,
            **settings,
        )
        await fs.set_session()
        return fs

    async def _put(self, row: int) -> Any:
        return await self._fs._pipe_file(f"{_BUCKET}/{self._object_name(row)}", bytes(self.rows.views[row]))

    async def _get(self, row: int) -> Any:
        return await self._fs._cat_file(f"{_BUCKET}/{self._object_name(row)}")

    def close(self) -> None:
        self._loop.run_until_complete(self._fs._s3creator.__aexit__(None, None, None))
        super().close()
