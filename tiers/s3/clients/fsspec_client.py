"""Any file system that fsspec knows, through the interface that all of them share."""

from __future__ import annotations

import asyncio
import math
from abc import abstractmethod
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
from fsspec.asyn import AsyncFileSystem

from tiering.errors import PermanentTierError
from tiering.tier import RunBlocking
from tiers.s3.clients.object_client import ListedObject, ObjectClient
from tiers.s3.config import FsspecConfig
from tiers.s3.errors import ObjectAbsentError, opening, translated
from tiers.s3.landing import Landing

__all__ = ["open_fsspec"]

_PUT_IS_ATOMIC = {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "r2", "s3", "s3a"}
"""Protocols of which nobody sees a half-written object. With others we write aside, and rename."""


async def open_fsspec(config: FsspecConfig, run_blocking: RunBlocking) -> ObjectClient:
    """Make a client for ``config.url``, with a file system object of its own.

    Raises:
        TierError: the settings cannot be used.
    """
    protocol = config.url.partition("://")[0]
    try:
        file_system = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise PermanentTierError(f"fsspec has no file system for {protocol}:// here: {error}") from None
    with opening():
        options = {"skip_instance_cache": True, "use_listings_cache": False} | config.storage_options
        root = file_system._strip_protocol(config.url).rstrip("/")
        if issubclass(file_system, AsyncFileSystem) and file_system.async_impl:
            fs = file_system(asynchronous=True, **options)
            if hasattr(fs, "set_session"):
                await fs.set_session()
            return _AsyncClient(fs, root, protocol)
        fs = await run_blocking(file_system, **options)
    client_type = _BlockingObjectsClient if protocol in _PUT_IS_ATOMIC else _BlockingFilesClient
    return client_type(fs, root, protocol, run_blocking)


class _AsyncClient(ObjectClient):
    """Objects of a file system that runs on the event loop; everything that is given up is private memory."""

    def __init__(self, fs: Any, root: str, protocol: str) -> None:
        self._fs = fs
        self._root = root
        self._protocol = protocol

    def describe(self) -> str:
        return f"fsspec {fsspec.__version__} over {self._protocol}, 2 copies per load and per store"

    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        with translated("read", name):
            async with asyncio.timeout_at(deadline):
                landing.hold(await self._fs._cat_file(f"{self._root}/{name}"))

    def pack(self, header: bytes, row: memoryview) -> bytes:
        return _joined(header, row)

    async def put(self, name: str, body: bytes, deadline: float, *, only_if_absent: bool) -> None:
        with translated("write", name):
            async with asyncio.timeout_at(deadline):
                await self._fs._pipe_file(f"{self._root}/{name}", body)

    async def head(self, name: str) -> int:
        with translated("look for", name):
            return int((await self._fs._info(f"{self._root}/{name}"))["size"])

    async def delete(self, name: str) -> None:
        with suppress(ObjectAbsentError), translated("delete", name):
            await self._fs._rm_file(f"{self._root}/{name}")

    async def list(self, directory: str) -> AsyncIterator[ListedObject]:
        with translated("list", directory):
            found = await self._fs._find(f"{self._root}/{directory}", detail=True)
        for path, entry in found.items():
            yield _listed(path.removeprefix(f"{self._root}/"), entry)

    async def close(self) -> None:
        """Sessions of such file systems end with the objects that hold them."""


class _BlockingClient(ObjectClient):
    """Objects of a file system with blocking calls; they run on the tier's threads.

    Nothing ends such a call from outside, so its time limit is the file system's own.
    """

    def __init__(self, fs: Any, root: str, protocol: str, run_blocking: RunBlocking) -> None:
        self._fs = fs
        self._root = root
        self._protocol = protocol
        self._run_blocking = run_blocking

    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        with translated("read", name):
            await self._run_blocking(self._read, f"{self._root}/{name}", landing)

    async def put(self, name: str, body: Any, deadline: float, *, only_if_absent: bool) -> None:
        with translated("write", name):
            await self._run_blocking(self._write, f"{self._root}/{name}", body)

    async def head(self, name: str) -> int:
        with translated("look for", name):
            return int((await self._run_blocking(self._fs.info, f"{self._root}/{name}"))["size"])

    async def delete(self, name: str) -> None:
        with suppress(ObjectAbsentError), translated("delete", name):
            await self._run_blocking(self._fs.rm_file, f"{self._root}/{name}")

    async def list(self, directory: str) -> AsyncIterator[ListedObject]:
        with translated("list", directory):
            found = await self._run_blocking(self._find, f"{self._root}/{directory}")
        for path, entry in found.items():
            yield _listed(path.removeprefix(f"{self._root}/"), entry)

    async def close(self) -> None:
        """Nothing stays open."""

    def _find(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self._fs.find(path, detail=True)
        return found

    @abstractmethod
    def _read(self, path: str, landing: Landing) -> None: ...

    @abstractmethod
    def _write(self, path: str, body: Any) -> None: ...


class _BlockingObjectsClient(_BlockingClient):
    """A store that takes and gives whole objects."""

    def describe(self) -> str:
        return f"fsspec {fsspec.__version__} over {self._protocol}, 2 copies per load and per store"

    def pack(self, header: bytes, row: memoryview) -> bytes:
        return _joined(header, row)

    def _read(self, path: str, landing: Landing) -> None:
        landing.hold(self._fs.cat_file(path))

    def _write(self, path: str, body: bytes) -> None:
        self._fs.pipe_file(path, body)


class _BlockingFilesClient(_BlockingClient):
    """A file system with directories and renaming; a file is written aside and then renamed."""

    def describe(self) -> str:
        return f"fsspec {fsspec.__version__} over {self._protocol}, no copies besides its own"

    def pack(self, header: bytes, row: memoryview) -> list[bytes | memoryview]:
        return [header, row]

    def _find(self, path: str) -> dict[str, Any]:
        # Neither `find` nor `walk` can be told to fail on a directory that cannot be read.
        found: dict[str, Any] = {}
        directories = [path.rstrip("/") or "/"]
        for directory in directories:
            entries = []
            # What is not there was removed meanwhile, or nothing was ever stored.
            with translated("list", directory), suppress(FileNotFoundError):
                entries = self._fs.ls(directory, detail=True)
            for entry in entries:
                if entry["type"] != "directory":
                    found[entry["name"]] = entry
                elif entry["name"].rstrip("/") != directory:
                    directories.append(entry["name"].rstrip("/"))
        return found

    def _read(self, path: str, landing: Landing) -> None:
        with self._fs.open(path, "rb") as file:
            landing.begin(getattr(file, "size", None))
            while (rest := landing.rest()) and (count := file.readinto(rest)):
                landing.advance(count)
            landing.take(file.read(1))
            landing.end()

    def _write(self, path: str, body: bytes | list[bytes | memoryview]) -> None:
        unfinished = f"{path.rpartition('/')[0]}/{uuid4().hex}.unfinished"
        try:
            with self._create(unfinished) as file:
                for part in [body] if isinstance(body, bytes) else body:
                    file.write(part)
            self._fs.mv(unfinished, path)
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self._fs.rm_file(unfinished)
            raise

    def _create(self, path: str) -> Any:
        try:
            return self._fs.open(path, "wb")
        except FileNotFoundError:
            self._fs.makedirs(self._fs._parent(path), exist_ok=True)
            return self._fs.open(path, "wb")


def _listed(name: str, entry: dict[str, Any]) -> ListedObject:
    """Return a line of a listing; file systems agree neither on the name of the time nor on its type."""
    times = ("LastModified", "last_modified", "mtime", "updated", "created")
    when = next((entry[time] for time in times if entry.get(time) is not None), math.inf)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return ListedObject(name, int(entry["size"] or 0), when.timestamp() if isinstance(when, datetime) else float(when))


def _joined(header: bytes, row: memoryview) -> bytes:
    body = np.empty(len(header) + row.nbytes, np.uint8)
    body[: len(header)] = np.frombuffer(header, np.uint8)
    if row.nbytes:
        body[len(header) :] = np.frombuffer(row, np.uint8)
    return body.tobytes()
