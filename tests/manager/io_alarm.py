"""Sees whether a thread does I/O or waits: an audit hook for what Python announces, wrappers for what it does not."""

from __future__ import annotations

import builtins
import concurrent.futures
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_AUDITED = (
    "open",
    "os.",
    "pathlib.",
    "shutil.",
    "socket.",
    "fcntl.",
    "mmap.",
    "glob.",
    "tempfile.",
    "subprocess.",
    "urllib.",
    "time.sleep",
)

_NOT_AUDITED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        os,
        (
            *("read", "write", "pread", "pwrite", "readv", "writev", "preadv", "pwritev", "sendfile", "lseek"),
            *("stat", "lstat", "fstat", "statvfs", "fsync", "fdatasync", "close", "open", "access", "posix_fallocate"),
            *("ftruncate", "truncate", "pipe", "copy_file_range", "sched_yield"),
        ),
    ),
    (socket.socket, ("send", "sendall", "sendto", "sendmsg", "recv", "recv_into", "connect", "accept", "close")),
    (builtins, ("open",)),
    (time, ("sleep",)),
    (threading.Thread, ("join", "start")),
    (threading.Condition, ("wait",)),
    (threading.Event, ("wait",)),
    (concurrent.futures.Future, ("result",)),
)

_armed = threading.local()


class IOAlarm:
    """Collects what armed threads do.

    Attributes:
        seen: names of the calls, with the place in the code that made them.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the calling thread."""
        _armed.alarm = self
        try:
            yield
        finally:
            _armed.alarm = None

    def note(self, name: str) -> None:
        frame = sys._getframe(2)
        self.seen.append(f"{name} in {frame.f_code.co_filename}:{frame.f_lineno}")


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    alarm = getattr(_armed, "alarm", None)
    if alarm is not None and event.startswith(_AUDITED):
        alarm.note(event)


sys.addaudithook(_audit)  # for the rest of the process; asleep unless a thread is watched


def _wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        alarm = getattr(_armed, "alarm", None)
        if alarm is not None:
            alarm.note(name)
        return function(*args, **kwargs)

    return call


@contextmanager
def io_alarm() -> Iterator[IOAlarm]:
    """Wrap the calls that Python does not announce, for as long as the block runs."""
    originals = [(owner, name, getattr(owner, name)) for owner, names in _NOT_AUDITED for name in names]
    own = [name in vars(owner) for owner, name, _ in originals]
    for owner, name, function in originals:
        setattr(owner, name, _wrapped(f"{owner.__name__}.{name}", function))
    try:
        yield IOAlarm()
    finally:
        for (owner, name, function), was_own in zip(originals, own, strict=True):
            if was_own:
                setattr(owner, name, function)
            else:
                delattr(owner, name)
