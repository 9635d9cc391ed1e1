"""Runs a tier in a process of its own: takes calls from the engine, and reports what they gave and what moved.

From the engine come ``(number, method, keys, rows)``. Back go ``("answer", number, value)``, ``("error", number,
temporary, text)``, ``("held", keys, flags)``: which of these chunks the tier holds now, ``("back", keys)``: these are
there without a store, and ``("corrupt", keys)``: these were dropped, because their bytes did not verify.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import io
import itertools
import logging
import os
import pickle
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tiering.errors import TierError, TieringError, text_of
from tiering.flags import checked_flags
from tiering.isolation.channel import Channel
from tiering.isolation.hosted_rows import HostedRows
from tiering.isolation.process_output import LineHandler, copy_levels
from tiering.job_loop import BlockingThreads
from tiering.keys import OffloadKey
from tiering.lent_rows import take_back, take_back_after
from tiering.naming import Namespace
from tiering.registry import SecondaryTierFactory
from tiering.tier import KnowsKeys, Tier, TierConfig, TierContext, TracksRecency

__all__ = ["HostStart", "TierHost", "main"]

_PR_SET_PDEATHSIG = 1
_KEYS_PER_MESSAGE = 10_000


@dataclass(frozen=True, slots=True)
class HostStart:
    """What a process needs to open its tier; crosses by pickle.

    Attributes:
        config: the tier's configuration.
        name: the tier's name.
        namespace: of what it stores.
        num_rows: rows in the region, of ``namespace.row_bytes`` each.
        log_levels: of the engine's loggers, by name.
    """

    config: TierConfig
    name: str
    namespace: Namespace
    num_rows: int
    log_levels: Mapping[str, int] = field(default_factory=dict)


class TierHost:
    """One tier and its channel to the engine. Everything runs on the event loop of the process's main thread."""

    def __init__(self, channel: Channel, start: HostStart, rows: HostedRows) -> None:
        """Make the tier; it is not open yet.

        Raises:
            PluginError: no such tier is installed.
            Exception: what the tier's constructor raised.
        """
        self._channel = channel
        self._rows = rows
        self._loop = asyncio.get_running_loop()
        self._mirrored = False
        threads = BlockingThreads(f"tiering-{start.name}", start.config.threads)
        context = TierContext(
            start.name,
            start.namespace.row_bytes,
            start.namespace,
            time.monotonic,
            threads.run,
            report_evicted=partial(self._soon, self._send_evicted),
            report_stored=partial(self._soon, self._send_back),
            report_corrupt=partial(self._soon, self._send_corrupt),
        )
        self._tier: Tier = SecondaryTierFactory.create_secondary_tier(start.config, context)
        self._contains = self._tier.contains if isinstance(self._tier, KnowsKeys) else None
        self._touch = self._tier.touch if isinstance(self._tier, TracksRecency) else None

    async def open(self) -> None:
        """Open the tier and tell the engine what it holds and can do.

        Raises:
            Exception: what `Tier.open` raised.
        """
        await self._tier.open()
        with suppress(NotImplementedError):
            await self._list_contents()
        self._channel.send(("open", self._mirrored, self._touch is not None, self._tier.describe()))

    async def serve(self) -> None:
        """Do what the engine asks until the tier is closed.

        Raises:
            EOFError: the engine is gone.
        """
        closed = False
        tasks: set[asyncio.Task[None]] = set()
        while not closed:
            for number, method, keys, rows in await self._channel.receive():
                if method == "touch":
                    if self._touch is not None:
                        with suppress(Exception):  # as in the engine's process: nobody waits for it
                            self._touch(keys)
                elif method == "close":
                    await self._answer(number, method, (), ())
                    closed = True
                else:
                    task = self._loop.create_task(self._answer(number, method, keys, rows))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)

    async def _answer(self, number: int, method: str, keys: Sequence[OffloadKey], rows: Sequence[int]) -> None:
        try:
            self._channel.send(("answer", number, await self._result(method, keys, rows)))
        except BaseException as error:  # whatever it is, the call has one answer and the process lives on
            self._channel.send(("error", number, *_described(error)))

    async def _result(self, method: str, keys: Sequence[OffloadKey], rows: Sequence[int]) -> Any:
        match method:
            case "lookup":
                return _flags(await self._tier.lookup(keys), keys)
            case "load":
                return await self._moved(self._tier.load, keys, rows)
            case "store":
                stored = await self._moved(self._tier.store, keys, rows)
                # A chunk may be gone again already; its eviction was reported before this answer.
                held = self._report_held(keys)
                return bytes(map(min, stored, held)) if held else stored
            case "delete":
                return await self._tier.delete(keys)
            case "usage":
                usage = await self._tier.usage()
                return usage.used_bytes, usage.capacity_bytes, usage.num_chunks
            case "close":
                return await self._tier.close()
        raise ValueError(f"a tier has no method {method!r}")

    async def _moved(self, move: _Move, keys: Sequence[OffloadKey], rows: Sequence[int]) -> bytes:
        lent = self._rows.views(rows)
        try:
            moved = _flags(await move(keys, lent), keys)
            await take_back(lent)
        except BaseException as error:
            await take_back_after(error, lent)
            raise
        return moved

    async def _list_contents(self) -> None:
        if self._contains is None:
            return
        keys = [key async for key in self._tier.keys()]  # noqa: SIM118  (a tier is no mapping)
        self._mirrored = True
        for begin in range(0, len(keys), _KEYS_PER_MESSAGE):
            self._report_held(keys[begin : begin + _KEYS_PER_MESSAGE])

    def _report_held(self, keys: Sequence[OffloadKey]) -> bytes:
        """Tell the engine which of ``keys`` the tier holds, if it can say so, and return the flags."""
        if not self._mirrored or self._contains is None:
            return b""
        flags = bytes(map(self._contains, keys))
        self._channel.send(("held", tuple(keys), flags))
        return flags

    def _soon(self, send: Callable[[tuple[OffloadKey, ...]], None], keys: Sequence[OffloadKey]) -> None:
        """From any thread. What is sent says what is held then, so that no later store is taken back by it."""
        with suppress(RuntimeError):  # the loop has ended, and with it everybody who wants to know
            self._loop.call_soon_threadsafe(send, tuple(keys))

    def _send_evicted(self, keys: tuple[OffloadKey, ...]) -> None:
        if self._mirrored:
            self._report_held(keys)
        else:
            self._channel.send(("held", keys, bytes(len(keys))))

    def _send_back(self, keys: tuple[OffloadKey, ...]) -> None:
        flags = self._report_held(keys)
        self._channel.send(("back", tuple(itertools.compress(keys, flags)) if flags else keys))

    def _send_corrupt(self, keys: tuple[OffloadKey, ...]) -> None:
        self._channel.send(("corrupt", keys))


_Move = Callable[[Sequence[OffloadKey], Sequence[memoryview]], Awaitable[list[bool]]]


def _flags(answer: Sequence[bool], keys: Sequence[OffloadKey]) -> bytes:
    return bytes(map(bool, checked_flags(answer, len(keys))))


def _described(error: BaseException) -> tuple[bool, str]:
    """Say whether another try may help, and what happened, for the other process."""
    temporary = isinstance(error, TierError) and error.temporary
    return temporary, str(error) if isinstance(error, TieringError) else text_of(error)


def main(socket_fd: int, rows_fd: int, engine_pid: int) -> None:
    """Run the tier that comes first through the socket, until the engine closes it or is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # even if the tier blocks this thread for ever
    if os.getppid() != engine_pid:
        return
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the engine, which ends us
        signal.signal(number, signal.SIG_IGN)
    logging.root.addHandler(LineHandler(io.FileIO(2, "w", closefd=False)))
    faulthandler.enable()
    asyncio.run(_run(socket.socket(fileno=socket_fd), rows_fd))


async def _run(end: socket.socket, rows_fd: int) -> None:
    channel = await Channel.over(end)
    try:
        ((payload,),) = await channel.receive()
        try:
            start: HostStart = pickle.loads(payload)
            copy_levels(start.log_levels)
            host = TierHost(channel, start, HostedRows(rows_fd, start.num_rows, start.namespace.row_bytes))
            await host.open()
        except Exception as error:
            channel.send(("failed", *_described(error)))
        else:
            await host.serve()
        await channel.close()
    except EOFError:
        os._exit(1)  # nobody is left who could wait for anything
