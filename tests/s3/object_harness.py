"""An object tier under test: places with real servers behind them, and back doors to what lies there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import botocore.session
import numpy as np
import pytest
from azurite_server import AzuriteServer
from back_doors import AzureDoor, BackDoor, FilesDoor, S3Door
from botocore.config import Config
from google_server import GoogleServer

from tiering.keys import OffloadKey, make_offload_key
from tiering.naming import Namespace
from tiering.registry import resolve_tier
from tiering.testing.ceph_server import CephServer
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.object_servers import MotoServer, ObjectServer, SeaweedServer
from tiering.testing.patterns import fill_row, row_matches
from tiering.tier import TierContext
from tiers.s3.object_tier import ObjectTier

ROW_BYTES = 8192
BUCKET = "kvcache"  # without a hyphen, which obstore escapes for Google, and moto does not take so
EVERYWHERE = ("s3fs-seaweedfs", "obstore-moto", "file", "memory")

QUICK_RETRIES = {"attempts": 4, "first_delay": "1ms", "max_delay": "4ms"}


def key_of(number: int, group: int = 0) -> OffloadKey:
    return make_offload_key(number.to_bytes(32, "big"), group)


def keys_of(*numbers: int) -> list[OffloadKey]:
    return [key_of(number) for number in numbers]


def blank_rows(num_rows: int, row_bytes: int = ROW_BYTES) -> list[memoryview]:
    """Return rows with a canary of the same size before, between and behind them."""
    memory = np.full((2 * num_rows + 1, row_bytes), 0xEE, np.uint8)
    return [memory[2 * row + 1].data for row in range(num_rows)]


def rows_for(keys: Sequence[OffloadKey], row_bytes: int = ROW_BYTES) -> list[memoryview]:
    rows = blank_rows(len(keys), row_bytes)
    for key, row in zip(keys, rows, strict=True):
        fill_row(row, key)
    return rows


def assert_canaries_live(rows: Sequence[memoryview]) -> None:
    if rows:
        memory = rows[0].obj.base
        assert (memory[0::2] == 0xEE).all(), "a load wrote outside of its row"


def namespace(row_bytes: int = ROW_BYTES, **fields: Any) -> Namespace:
    return Namespace(**{"model_name": "model", "row_bytes": row_bytes} | fields)


def run_on_default_threads(function: Callable[..., object], /, *args: object, **kwargs: object) -> Awaitable[object]:
    return asyncio.to_thread(function, *args, **kwargs)


class Clock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Place:
    """One place to keep objects in, empty at first.

    Attributes:
        settings: the tier's configuration.
        server: behind it, if any.
        directory: what all names there begin with.
    """

    settings: dict[str, Any]
    server: ObjectServer | None
    directory: str

    def through(self, proxy: FaultProxy) -> Place:
        return replace(self, settings=self.settings | {"endpoint_url": proxy.url})

    def tier(
        self,
        *,
        name_space: Namespace | None = None,
        clock: Clock | None = None,
        evicted: list[OffloadKey] | None = None,
        **settings: Any,
    ) -> ObjectTier:
        name_space = name_space or namespace()
        tier_type = resolve_tier(self.settings["type"])
        config = tier_type.config_type.model_validate({"retry": QUICK_RETRIES} | self.settings | settings)
        context = TierContext(
            name="objects",
            row_bytes=name_space.row_bytes,
            namespace=name_space,
            clock=clock or Clock(),
            run_blocking=run_on_default_threads,
            report_evicted=(evicted if evicted is not None else []).extend,
        )
        tier = tier_type(config, context)
        assert isinstance(tier, ObjectTier)
        return tier

    @asynccontextmanager
    async def opened(self, **settings: Any) -> AsyncIterator[ObjectTier]:
        tier = self.tier(**settings)
        await tier.open()
        try:
            yield tier
        finally:
            await tier.close()

    # -- back doors --

    def names(self) -> list[str]:
        """Every object below the place, seen without the tier."""
        names = self._door.names(f"{self.directory}/")
        return sorted(name.removeprefix(f"{self.directory}/") for name in names)

    def chunks(self) -> list[str]:
        return [name for name in self.names() if not name.endswith("namespace.json")]

    def chunk(self, number: int) -> str:
        return next(name for name in self.chunks() if name.endswith(key_of(number).hex()))

    def read(self, name: str) -> bytes:
        return self._door.read(f"{self.directory}/{name}")

    def write(self, name: str, data: bytes) -> None:
        self._door.write(f"{self.directory}/{name}", data)

    def remove(self, name: str) -> None:
        self._door.remove(f"{self.directory}/{name}")

    @property
    def _door(self) -> BackDoor:
        if self.server is None:
            return FilesDoor(self.settings["url"])
        if isinstance(self.server, AzuriteServer):
            return AzureDoor(self.server, BUCKET)
        return S3Door(back_door(self.server), BUCKET)


@cache
def back_door(server: ObjectServer) -> Any:
    """Return a client of another library than those under test."""
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
        config=Config(s3={"addressing_style": "path"}),
    )


class Servers:
    """Starts servers when they are first asked for, and gives out places on them."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[str, ObjectServer] = {}
        self._numbers = count(1)

    def place(self, what: str, directories: pytest.TempPathFactory) -> Place:
        """Return a place that nobody has used."""
        return self.place_of(what, directories.mktemp("objects"), f"place-{next(self._numbers)}")

    def place_of(self, what: str, directory: Path, name: str) -> Place:
        """Return the place in ``directory`` or, where there are none, the one called ``name``."""
        if what == "file":
            return Place({"type": "fsspec", "url": f"file://{directory}"}, None, str(directory))
        if what == "memory":
            return Place({"type": "fsspec", "url": f"memory://{name}"}, None, f"/{name}")
        client, _, kind = what.partition("-")
        server = self.server(kind)
        return Place(settings_for(server, client=client, prefix=name), server, name)

    def server(self, kind: str) -> ObjectServer:
        if kind not in self._running:
            server = new_server(kind)
            self._stack.enter_context(server)
            server.make_bucket(BUCKET)
            if kind != "azurite":
                back_door(server).list_buckets()  # its connection is there before anybody counts descriptors
            self._running[kind] = server
        return self._running[kind]


def new_server(kind: str) -> ObjectServer:
    server_types: dict[str, type[ObjectServer]] = {
        "seaweedfs": SeaweedServer,
        "moto": MotoServer,
        "ceph": CephServer,
        "azurite": AzuriteServer,
        "google": GoogleServer,
    }
    server_type = server_types[kind]
    if not server_type.is_installed():
        pytest.skip(f"the {kind} server is not installed")
    return server_type()


def settings_for(server: ObjectServer, **settings: Any) -> dict[str, Any]:
    identity: dict[str, Any] = {
        "region": server.region,
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }
    if isinstance(server, AzuriteServer):
        options = {"account_name": server.access_key, "account_key": server.secret_key}
        identity = {"provider": "azure", "storage_options": options}
    if isinstance(server, GoogleServer):
        identity = {"provider": "gcs", "storage_options": {"service_account_key": server.service_account}}
    return {"type": "s3", "bucket": BUCKET, "endpoint_url": server.endpoint_url} | identity | settings


async def store(tier: ObjectTier, *numbers: int) -> list[bool]:
    keys = keys_of(*numbers)
    return await tier.store(keys, rows_for(keys, tier.context.row_bytes))


async def load(tier: ObjectTier, *numbers: int) -> list[bool]:
    """Load and compare the bytes of every True; canaries around the rows must live."""
    keys = keys_of(*numbers)
    rows = blank_rows(len(keys), tier.context.row_bytes)
    answers = await tier.load(keys, rows)
    for key, row, answer in zip(keys, rows, answers, strict=True):
        assert not answer or row_matches(row, key)
    assert_canaries_live(rows)
    return answers
