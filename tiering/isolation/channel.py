"""The socket between an engine and the process of one of its tiers: lists of small tuples, in order, both ways.

What is sent within one turn of the event loop crosses as one frame: its length, then the pickled list. A frame holds
plain data only (numbers, strings, bytes, tuples); anything else in it is refused, so a process that has lost its mind
can break its channel, but cannot make the other side call anything.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import socket
import struct
from contextlib import suppress
from typing import Any

__all__ = ["Channel", "ChannelBrokenError", "Message"]

Message = tuple[Any, ...]

_LENGTH = struct.Struct("<I")
_MAX_FRAME_BYTES = 256 * 2**20
"""More than any frame has: 128 jobs of 10,000 keys each take about 60 MiB."""


class ChannelBrokenError(Exception):
    """The other side has sent something that is no frame."""


class Channel:
    """One end of the socket. Belongs to one event loop; every method runs on its thread."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unsent: list[Message] = []

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Return a channel that owns ``end``, a connected stream socket."""
        return cls(*await asyncio.open_unix_connection(sock=end))

    def send(self, message: Message) -> None:
        """Send ``message`` when this turn of the loop ends; waits for nothing. No error if the other end is gone."""
        self._unsent.append(message)
        if len(self._unsent) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    async def receive(self) -> list[Message]:
        """Wait for the next frame and return its messages.

        Raises:
            EOFError: the other end is closed.
            ChannelBrokenError: no frame came in; nothing after it can be understood.
        """
        try:
            (num_bytes,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if num_bytes > _MAX_FRAME_BYTES:
                raise ChannelBrokenError(f"a frame of {num_bytes} bytes, more than {_MAX_FRAME_BYTES}")
            return _decoded(await self._reader.readexactly(num_bytes))
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise EOFError("the other end is closed") from error

    async def close(self) -> None:
        """Send what is left, as far as the other end still reads, and close."""
        self._flush()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def abort(self) -> None:
        """Close without sending what is left."""
        self._unsent.clear()
        self._writer.transport.abort()

    def _flush(self) -> None:
        if self._unsent and not self._writer.is_closing():
            frame = pickle.dumps(self._unsent, protocol=pickle.HIGHEST_PROTOCOL)
            self._writer.write(_LENGTH.pack(len(frame)) + frame)
        self._unsent = []


class _PlainData(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is not plain data")


def _decoded(frame: bytes) -> list[Message]:
    try:
        messages = _PlainData(io.BytesIO(frame)).load()
    except Exception as error:  # what a damaged pickle raises can be anything
        raise ChannelBrokenError(f"a frame that cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(messages, list) or not all(isinstance(message, tuple) for message in messages):
        raise ChannelBrokenError("a frame that is no list of tuples")
    return messages
