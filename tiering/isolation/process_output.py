"""What a tier's process logs and prints: lines through a pipe there, log records here.

A record crosses as a mark and ``[logger, level, text]`` in JSON; any other line is something printed. There are so many
lines a minute and no more, so that a process that talks without end costs the engine next to nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import BinaryIO

__all__ = ["LineHandler", "ProcessOutput", "copy_levels", "explicit_levels"]

logger = logging.getLogger(__name__)

_MARK = b"\x1e"
_LINES_PER_INTERVAL = 200
_INTERVAL_SECONDS = 60.0
_MAX_CHARACTERS = 4_000
_MAX_LINE_BYTES = 2**16
"""More than any record has: JSON writes no character in more than twelve bytes."""


def explicit_levels() -> Mapping[str, int]:
    """Return the loggers of this process that have a level of their own, by name; the root is ``""``."""
    loggers = list(logging.root.manager.loggerDict.items())
    named = {name: found.level for name, found in loggers if isinstance(found, logging.Logger) and found.level}
    return {"": logging.root.level} | named


def copy_levels(levels: Mapping[str, int]) -> None:
    """Give the loggers of this process the levels that those of another one have."""
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


class LineHandler(logging.Handler):
    """Writes each record as one line for a `ProcessOutput`."""

    def __init__(self, stream: BinaryIO) -> None:
        """Write to ``stream``, which must not buffer."""
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = (record.name, record.levelno, self.format(record)[:_MAX_CHARACTERS])
            self._stream.write(_MARK + json.dumps(fields).encode() + b"\n")
        except Exception:  # as every handler does: the program goes on
            self.handleError(record)


class ProcessOutput:
    """Logs what comes out of the processes of one tier, one after the other. Used on one thread.

    A record keeps its logger and level; a printed line is a warning. All name the tier.
    """

    def __init__(self, tier_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._tier_name = tier_name
        self._clock = clock
        self._interval_ends = 0.0
        self._num_left = 0
        self._num_dropped = 0
        self._unfinished = b""

    def take(self, data: bytes) -> None:
        """Take up the next bytes."""
        now = self._clock()
        if now >= self._interval_ends:
            self._say_dropped()
            self._interval_ends = now + _INTERVAL_SECONDS
            self._num_left = _LINES_PER_INTERVAL
        if not self._num_left:
            self._num_dropped += data.count(b"\n")
            self._unfinished = (self._unfinished + data).rpartition(b"\n")[2][:_MAX_LINE_BYTES]
            return
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        for line in lines:
            self._take_line(line)
        if len(self._unfinished) > _MAX_LINE_BYTES:
            self._take_line(self._unfinished)
            self._unfinished = b""

    def end(self) -> None:
        """The process has ended: its last line needs no end."""
        self._take_line(self._unfinished)
        self._unfinished = b""
        self._say_dropped()

    def _take_line(self, line: bytes) -> None:
        printed, mark, record = line.partition(_MARK)
        if printed.strip():
            self._log(__name__, logging.WARNING, "printed: " + _printable(printed))
        if mark:
            try:
                name, level, text = json.loads(record)
                self._log(str(name), int(level), str(text))
            except (ValueError, TypeError):
                self._log(__name__, logging.WARNING, "printed: " + _printable(record))

    def _log(self, name: str, level: int, text: str) -> None:
        if not self._num_left:
            self._num_dropped += 1
            return
        self._num_left -= 1
        origin = f"tier {self._tier_name}"
        logging.getLogger(name).log(level, "%s", text if text.startswith(origin) else f"{origin}: {text}")

    def _say_dropped(self) -> None:
        if self._num_dropped:
            logger.warning("tier %s: %d more lines of its process are not shown", self._tier_name, self._num_dropped)
            self._num_dropped = 0


def _printable(line: bytes) -> str:
    text = line.decode(errors="replace")[:_MAX_CHARACTERS]
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
