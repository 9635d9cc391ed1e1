"""S3, Google and Azure through obstore: a client library in Rust, which takes a third of the CPU time."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from tiering.errors import PermanentTierError
from tiers.s3.aws_session import new_aws_session
from tiers.s3.clients.native_calls import NativeCalls
from tiers.s3.clients.object_client import ListedObject, ObjectClient
from tiers.s3.config import S3Config
from tiers.s3.errors import ObjectAbsentError, opening, translated
from tiers.s3.landing import Landing

__all__ = ["ObstoreClient"]

_LISTED_AT_A_TIME = 1000


@cache
def _process_of_threads() -> int:
    """Return the process that has the library's threads: the one that asks first. Its children inherit the answer."""
    return os.getpid()


class ObstoreClient(ObjectClient):
    """Objects of one bucket.

    A body arrives in memory of the library, and is copied into the row on a worker thread. A body to send is read
    from the row itself, without a copy; so a PUT ends by the library's own timeout, and is never given up before.
    """

    can_put_if_absent = True

    def __init__(self, store: Any) -> None:
        self._store = store
        self._calls = NativeCalls()

    @classmethod
    async def open(cls, config: S3Config) -> ObstoreClient:
        """Make a client; no request is sent.

        Raises:
            TierError: the settings cannot be used, or this process was forked from one that has used the library.
        """
        if os.getpid() != _process_of_threads():
            raise PermanentTierError(
                "obstore does not work in a process forked from one that has used it; allowed: to spawn processes, to "
                "fork before the first use, or client: s3fs"
            )
        with opening():
            store = {"s3": _s3_store, "gcs": _gcs_store, "azure": _azure_store}[config.provider](config)
        return cls(store)

    def describe(self) -> str:
        return f"obstore {obstore.__version__}, 1 copy per load, 0 per store"

    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        # A range comes in one call, where a whole object takes two; each costs as much as a hundred kilobytes do. The
        # byte too many shows objects that are too long.
        whole = {"start": 0, "length": landing.num_bytes + 1}
        with translated("GET", name):
            async with asyncio.timeout_at(deadline):
                body = await self._calls.run(obstore.get_range_async(self._store, name, **whole))
            landing.hold(memoryview(body))

    def pack(self, header: bytes, row: memoryview) -> list[bytes | memoryview]:
        return [header, row] if row.nbytes else [header]

    async def put(self, name: str, body: Any, deadline: float, *, only_if_absent: bool) -> None:
        mode = "create" if only_if_absent else "overwrite"
        with translated("PUT", name):
            call = obstore.put_async(self._store, name, body, mode=mode, use_multipart=False)  # type: ignore[arg-type]
            await self._calls.run(call)

    async def head(self, name: str) -> int:
        with translated("HEAD", name):
            return int((await self._calls.run(obstore.head_async(self._store, name)))["size"])

    async def delete(self, name: str) -> None:
        with suppress(ObjectAbsentError), translated("DELETE", name):
            await self._calls.run(obstore.delete_async(self._store, name))

    async def list(self, directory: str) -> AsyncIterator[ListedObject]:
        with translated("list", directory):
            pages = obstore.list(self._store, directory, chunk_size=_LISTED_AT_A_TIME)
            with suppress(StopAsyncIteration):
                while True:
                    for entry in await self._calls.run(anext(pages)):
                        yield ListedObject(entry["path"], int(entry["size"]), entry["last_modified"].timestamp())

    async def close(self) -> None:
        del self._store  # the library closes its connections with the last reference


def _longest(config: S3Config) -> timedelta:
    return timedelta(seconds=max(config.limits.store_timeout, config.limits.load_timeout))


def _timeouts(config: S3Config) -> dict[str, Any]:
    limits = config.limits
    options: dict[str, Any] = {
        "timeout": _longest(config),
        "connect_timeout": timedelta(seconds=limits.connect_timeout),
        "pool_max_idle_per_host": str(limits.transfers + limits.questions),
    }
    if config.endpoint_url is not None and config.endpoint_url.startswith("http://"):
        options["allow_http"] = True
    return options


def _s3_store(config: S3Config) -> S3Store:
    settings: dict[str, Any] = {"unsigned_payload": True}
    if config.endpoint_url is not None:
        settings |= {"endpoint": config.endpoint_url, "virtual_hosted_style_request": False}
    if config.region is not None:
        settings["region"] = config.region
    provider: Callable[[], Awaitable[Any]] | None = None
    if config.access_key_id is not None and config.secret_access_key is not None:
        settings["access_key_id"] = config.access_key_id.get_secret_value()
        settings["secret_access_key"] = config.secret_access_key.get_secret_value()
        if config.session_token is not None:
            settings["session_token"] = config.session_token.get_secret_value()
    elif importlib.util.find_spec("aiobotocore") is not None:
        provider = _aws_chain(config)
    settings |= config.storage_options
    if {"access_key_id", "skip_signature"} & config.storage_options.keys():
        provider = None
    return S3Store(
        config.bucket,
        config=settings,  # type: ignore[arg-type]
        client_options=_timeouts(config),  # type: ignore[arg-type]
        retry_config={"max_retries": 0, "retry_timeout": _longest(config)},
        credential_provider=provider,  # type: ignore[arg-type]
    )


def _gcs_store(config: S3Config) -> GCSStore:
    endpoint = {} if config.endpoint_url is None else {"base_url": config.endpoint_url}
    return GCSStore(
        config.bucket,
        config=endpoint | config.storage_options,  # type: ignore[arg-type]
        client_options=_timeouts(config),  # type: ignore[arg-type]
        retry_config={"max_retries": 0, "retry_timeout": _longest(config)},
    )


def _azure_store(config: S3Config) -> AzureStore:
    endpoint = {} if config.endpoint_url is None else {"endpoint": config.endpoint_url}
    return AzureStore(
        config.bucket,
        config=endpoint | config.storage_options,  # type: ignore[arg-type]
        client_options=_timeouts(config),  # type: ignore[arg-type]
        retry_config={"max_retries": 0, "retry_timeout": _longest(config)},
    )


def _aws_chain(config: S3Config) -> Callable[[], Awaitable[Any]]:
    """Return what obstore asks for credentials: the same AWS chain that s3fs uses."""
    session = new_aws_session(config)

    async def credentials() -> dict[str, Any]:
        found = await session.get_credentials()
        if found is None:
            raise ValueError("no AWS credentials found")
        frozen = await found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(found, "_expiry_time", None),
        }

    return credentials
