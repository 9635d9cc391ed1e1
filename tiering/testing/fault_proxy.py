"""An HTTP proxy that misbehaves to order: what a test puts between a client and a real object server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tiering.testing.http_faults import HttpFault, ProxiedRequest

__all__ = ["FaultProxy"]

R = TypeVar("R")

_MAX_HEAD_BYTES = 2**16


@dataclass(slots=True)
class _Message:
    """A request or an answer, read as a whole."""

    start_line: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def to_bytes(self) -> bytes:
        lines = [self.start_line, *(f"{name}: {value}" for name, value in self.headers.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + self.body


class FaultProxy:
    """A context manager: a proxy on a port of its own, served by a thread of its own.

    Signed requests pass, because the ``Host`` header is left as the client has set it. ``Expect: 100-continue`` is
    answered by the proxy. Methods may be called from any thread.

    Attributes:
        url: where clients find it.
        requests: what has arrived, in order; never cleared by the proxy.
    """

    def __init__(self, upstream_url: str) -> None:
        upstream = urlsplit(upstream_url)
        self._upstream = (upstream.hostname or "127.0.0.1", upstream.port or 80)
        self._faults: list[tuple[HttpFault, list[int]]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._connections: set[asyncio.Task[None]] = set()
        self._arrived = threading.Condition()
        self.requests: list[ProxiedRequest] = []
        self.url = ""

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        self._server = self._on_loop(asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_MAX_HEAD_BYTES))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._on_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def add(self, fault: HttpFault) -> None:
        """Let ``fault`` happen from now on; the one added last goes first."""
        self._faults.insert(0, (fault, []))

    @contextmanager
    def during(self, fault: HttpFault) -> Iterator[None]:
        """Let ``fault`` happen while the block runs."""
        entry: tuple[HttpFault, list[int]] = (fault, [])
        self._faults.insert(0, entry)
        try:
            yield
        finally:
            self._faults = [other for other in self._faults if other is not entry]

    def clear(self) -> None:
        """Pass everything from now on."""
        self._faults = []

    def count(self, method: str, path: str = "") -> int:
        """Return how many requests of ``method`` with ``path`` in their path have arrived."""
        return sum(request.method == method and path in request.path for request in list(self.requests))

    def wait_for(self, method: str, num_requests: int, timeout_seconds: float = 30.0) -> None:
        """Wait until so many requests of ``method`` have arrived since the start.

        Raises:
            TimeoutError: they have not in time.
        """
        with self._arrived:
            if not self._arrived.wait_for(lambda: self.count(method) >= num_requests, timeout_seconds):
                raise TimeoutError(f"{self.count(method)} of {num_requests} {method} requests in {timeout_seconds} s")

    @property
    def num_connections(self) -> int:
        """How many clients' connections are open."""
        return len(self._connections)

    def _on_loop(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _stop(self) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        if connection is not None:
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
        to_server: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            while (request := await _read_message(reader, writer)) is not None:
                if not await self._serve(request, reader, writer, to_server):
                    break
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one side has gone
        finally:
            for _, server_writer in to_server:
                server_writer.transport.abort()
            writer.transport.abort()

    async def _serve(
        self,
        message: _Message,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        to_server: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]],
    ) -> bool:
        """Answer one request; False if the connection is to end."""
        method, path, _ = message.start_line.split(" ", 2)
        request = ProxiedRequest(method, path, message.headers)
        with self._arrived:
            self.requests.append(request)
            self._arrived.notify_all()
        fault = self._fault_for(request)
        await asyncio.sleep(fault.delay_seconds)
        if fault.reset:
            return False
        if fault.stall:
            await reader.read()  # until the client gives up
            return False
        if fault.status is not None:
            answer = _error_answer(fault.status, "" if method == "HEAD" else fault.code)
        else:
            if not to_server:
                to_server.append(await asyncio.open_connection(*self._upstream, limit=_MAX_HEAD_BYTES))
            server_reader, server_writer = to_server[0]
            server_writer.write(message.to_bytes())
            await server_writer.drain()
            found = await _read_message(server_reader, None, without_body=method == "HEAD")
            if found is None:
                return False
            answer = found
        return await _send(answer, fault, writer)

    def _fault_for(self, request: ProxiedRequest) -> HttpFault:
        for fault, happened in self._faults:
            if fault.concerns(request) and (fault.times is None or len(happened) < fault.times):
                happened.append(1)
                return fault
        return HttpFault()


async def _read_message(
    reader: asyncio.StreamReader, expecting: asyncio.StreamWriter | None, *, without_body: bool = False
) -> _Message | None:
    """Read one message; None at the end of the connection. Who waits at ``expecting`` for a 100 is sent one."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        start_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        if not start_line.startswith("HTTP/1.1 100"):
            break
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.pop("expect", "").lower() == "100-continue" and expecting is not None:
        expecting.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    message = _Message(start_line, headers)
    if without_body:
        return message
    if headers.get("transfer-encoding", "").lower() == "chunked":
        del headers["transfer-encoding"]
        message.body = await _read_chunks(reader)
        headers["content-length"] = str(len(message.body))
    else:
        message.body = await reader.readexactly(int(headers.get("content-length", 0)))
    return message


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readline()
    while (await reader.readline()).strip():
        pass  # trailers
    return body


async def _send(answer: _Message, fault: HttpFault, writer: asyncio.StreamWriter) -> bool:
    if fault.replace_body is not None:
        answer.body = fault.replace_body
        answer.headers["content-length"] = str(len(answer.body))
    if fault.flip_at is not None and fault.flip_at < len(answer.body):
        flipped = bytearray(answer.body)
        flipped[fault.flip_at] ^= 1
        answer.body = bytes(flipped)
    if fault.cut_after is not None:
        answer.body = answer.body[: fault.cut_after]
    body, answer.body = answer.body, b""
    writer.write(answer.to_bytes())
    piece_bytes = len(body) or 1
    if fault.bytes_per_second is not None:
        piece_bytes = max(1, int(fault.bytes_per_second * 0.05))
    for start in range(0, len(body), piece_bytes):
        piece = body[start : start + piece_bytes]
        writer.write(piece)
        if fault.bytes_per_second is not None:
            await asyncio.sleep(len(piece) / fault.bytes_per_second)
    await writer.drain()
    if fault.cut_after is not None:
        with suppress(OSError):
            writer.close()
            await writer.wait_closed()
        return False
    return True


def _error_answer(status: int, code: str) -> _Message:
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>to order</Message></Error>".encode() if code else b""
    )
    headers = {"content-type": "application/xml", "content-length": str(len(body)), "server": "fault-proxy"}
    return _Message(f"HTTP/1.1 {status} To Order", headers, body)
