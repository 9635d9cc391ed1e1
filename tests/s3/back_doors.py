"""Ways to the objects of a store that do not lead through the tier, nor through the libraries under test."""

from __future__ import annotations

from typing import Any, Protocol

import fsspec
from azurite_server import AzuriteServer


class BackDoor(Protocol):
    """Whole objects by their full names."""

    def names(self, prefix: str) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...


class S3Door:
    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self._bucket = bucket

    def names(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def read(self, name: str) -> bytes:
        return bytes(self._client.get_object(Bucket=self._bucket, Key=name)["Body"].read())

    def write(self, name: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=name, Body=data)

    def remove(self, name: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=name)


class AzureDoor:
    def __init__(self, server: AzuriteServer, container: str) -> None:
        self._server = server
        self._container = container

    def names(self, prefix: str) -> list[str]:
        return self._server.names(self._container, prefix)

    def read(self, name: str) -> bytes:
        return self._server.request("GET", f"{self._container}/{name}")

    def write(self, name: str, data: bytes) -> None:
        self._server.request("PUT", f"{self._container}/{name}", body=data)

    def remove(self, name: str) -> None:
        self._server.request("DELETE", f"{self._container}/{name}")


class FilesDoor:
    """Files, or what fsspec keeps in memory."""

    def __init__(self, url: str) -> None:
        self._fs = fsspec.filesystem(url.partition("://")[0])

    def names(self, prefix: str) -> list[str]:
        return list(self._fs.find(prefix.rstrip("/")))

    def read(self, name: str) -> bytes:
        return bytes(self._fs.cat_file(name))

    def write(self, name: str, data: bytes) -> None:
        self._fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        self._fs.pipe_file(name, data)

    def remove(self, name: str) -> None:
        self._fs.rm_file(name)
