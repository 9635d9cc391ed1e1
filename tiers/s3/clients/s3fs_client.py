"""S3 through s3fs: the client library of the Python world, tuned, on the core's event loop."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import s3fs

from tiers.s3.aws_session import new_aws_session
from tiers.s3.clients.object_client import ListedObject, ObjectClient
from tiers.s3.config import S3Config
from tiers.s3.errors import ObjectAbsentError, opening, translated
from tiers.s3.landing import Landing

__all__ = ["S3fsClient"]

Body = npt.NDArray[np.uint8]


class S3fsClient(ObjectClient):
    """Objects of one bucket.

    A body arrives in pieces and is copied once, into the row. A body to send is copied once by us, to be private, and
    once more by asyncio where the socket does not take it at once.
    """

    can_put_if_absent = True

    def __init__(self, fs: s3fs.S3FileSystem, bucket: str) -> None:
        self._fs = fs
        self._bucket = bucket
        # Fresh memory costs several times what copying a row to it does: each page of it is a fault.
        self._spare_bodies: list[Body] = []

    @classmethod
    async def open(cls, config: S3Config) -> S3fsClient:
        """Make a client with a session of its own; no request is sent but those that find credentials.

        Raises:
            TierError: the settings cannot be used.
        """
        with opening():
            fs = s3fs.S3FileSystem(**_arguments(config))
            fs.retries = 1
            client = await fs.set_session()
            client.meta.events.register("before-call.s3.HeadBucket", _follow_no_redirect)
            client.meta.events.register("request-created.s3.PutObject", _send_the_body_at_once)
        return cls(fs, config.bucket)

    def describe(self) -> str:
        return f"s3fs {s3fs.__version__}, 1 copy per load, 1-2 per store"

    async def get(self, name: str, landing: Landing, deadline: float) -> None:
        with translated("GET", name):
            async with asyncio.timeout_at(deadline):
                answer = await self._call("get_object", Key=name)
            # The body as aiohttp has it: read by pieces, it is not gathered in memory first.
            response = getattr(answer["Body"], "raw_stream", answer["Body"])
            try:
                landing.begin(answer.get("ContentLength"))
                content = response.content
                while True:
                    async with asyncio.timeout_at(deadline):
                        piece, _ = await content.readchunk()
                    if not piece:
                        break
                    landing.take(piece)
                landing.end()
            except BaseException:
                response.close()
                raise

    def pack(self, header: bytes, row: memoryview) -> Body:
        num_bytes = len(header) + row.nbytes
        try:
            body = self._spare_bodies.pop()
        except IndexError:
            body = np.empty(num_bytes, np.uint8)
        if body.size != num_bytes:
            body = np.empty(num_bytes, np.uint8)
        body[: len(header)] = np.frombuffer(header, np.uint8)
        if row.nbytes:
            body[len(header) :] = np.frombuffer(row, np.uint8)
        return body

    async def put(self, name: str, body: Body | bytes, deadline: float, *, only_if_absent: bool) -> None:
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        with translated("PUT", name):
            async with asyncio.timeout_at(deadline):
                await self._call("put_object", Key=name, Body=_ViewsOf(body), **condition)
        if not isinstance(body, bytes):
            # Only now: the transport of a request that failed may still hold it.
            self._spare_bodies.append(body)

    async def head(self, name: str) -> int:
        with translated("HEAD", name):
            answer = await self._call("head_object", Key=name)
            return int(answer["ContentLength"])

    async def delete(self, name: str) -> None:
        with translated("DELETE", name):
            await self._call("delete_object", Key=name)

    async def list(self, directory: str) -> AsyncIterator[ListedObject]:
        position: dict[str, str] = {}
        while True:
            with translated("list", directory):
                page = await self._call("list_objects_v2", Prefix=directory, **position)
            for entry in page.get("Contents", ()):
                yield ListedObject(entry["Key"], int(entry["Size"]), entry["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            position = {"ContinuationToken": page["NextContinuationToken"]}

    async def list_uploads(self, directory: str) -> AsyncIterator[ListedObject]:
        position: dict[str, str] = {}
        while True:
            with translated("list uploads below", directory):
                page = await self._call("list_multipart_uploads", Prefix=directory, **position)
            for entry in page.get("Uploads", ()):
                yield ListedObject(entry["Key"], 0, entry["Initiated"].timestamp(), entry["UploadId"])
            if not page.get("IsTruncated"):
                return
            position = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    async def abort_upload(self, name: str, upload_id: str) -> None:
        with suppress(ObjectAbsentError), translated("abort the upload of", name):
            await self._call("abort_multipart_upload", Key=name, UploadId=upload_id)

    async def close(self) -> None:
        # s3fs closes what it has opened only where it runs its own loop.
        await self._fs._s3creator.__aexit__(None, None, None)

    async def _call(self, method: str, **arguments: Any) -> Any:
        return await self._fs._call_s3(method, Bucket=self._bucket, **arguments)


class _ViewsOf(io.BytesIO):
    """A request body that hands out large views of private memory; reading a BytesIO would copy each piece again."""

    _PIECE_BYTES = 2**18

    def __init__(self, body: Body | bytes) -> None:
        super().__init__()
        self._body = body.data if isinstance(body, np.ndarray) else memoryview(body)
        self._position = 0

    def read(self, size: int | None = -1, /) -> Any:
        piece = self._body[self._position : self._position + self._PIECE_BYTES]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self._body)}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position


def _follow_no_redirect(params: dict[str, Any], **_: Any) -> None:
    """Mark a request as redirected already.

    botocore asks for the region of a bucket that is elsewhere by a request which may be redirected itself, for ever.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _send_the_body_at_once(request: Any, **_: Any) -> None:
    """Do not wait for the service to say that it wants the body: that costs each PUT a round trip."""
    del request.headers["Expect"]


def _arguments(config: S3Config) -> dict[str, Any]:
    """Return what `S3FileSystem` is made with: our choices, and the user's on top of them."""
    limits = config.limits
    chosen: dict[str, Any] = {
        "asynchronous": True,
        "skip_instance_cache": True,
        "use_listings_cache": False,
        "endpoint_url": config.endpoint_url,
        "session": new_aws_session(config),
        "client_kwargs": {"region_name": config.region} if config.region else {},
        "config_kwargs": {
            # Each object has its own checksum, so the body is neither signed nor summed up a second time.
            "s3": {"payload_signing_enabled": False} | ({"addressing_style": "path"} if config.endpoint_url else {}),
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "max_pool_connections": limits.transfers + limits.questions,
            "parameter_validation": False,
            "user_agent": "kv-tiering",
            "connect_timeout": limits.connect_timeout,
            "read_timeout": max(limits.store_timeout, limits.load_timeout),
            "retries": {"total_max_attempts": 1, "mode": "standard"},
        },
    }
    if config.access_key_id is not None and config.secret_access_key is not None:
        chosen |= {
            "key": config.access_key_id.get_secret_value(),
            "secret": config.secret_access_key.get_secret_value(),
            "token": config.session_token.get_secret_value() if config.session_token else None,
        }
    return _merged(chosen, config.storage_options)


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    both = under | over
    for key in under.keys() & over.keys():
        if isinstance(under[key], dict) and isinstance(over[key], dict):
            both[key] = _merged(under[key], over[key])
    return both
