"""The writer of the index on disk: changes go to a journal, now and then the whole index to a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import aiofiles
import aiofiles.os

from tiering.keys import OffloadKey
from tiers.disk.counters import DiskCounters
from tiers.disk.index_files import (
    encode_delete,
    encode_journal_start,
    encode_put,
    encode_snapshot,
    journal_path,
    snapshot_path,
)
from tiers.disk.slots import IndexEntry

__all__ = ["Journal"]

_logger = logging.getLogger(__name__)
_RECORDS_UNTIL_RETRY = 1000


class Journal:
    """Writes index changes behind the caller's back, in their order, many in one append.

    All methods run on the event loop thread. A failed write is counted and costs nothing but chunks not found after
    a restart; the next successful snapshot makes up for it.
    """

    def __init__(
        self,
        directory: Path,
        identity: bytes,
        *,
        epoch: int,
        snapshot_every: int,
        entries: Callable[[], list[IndexEntry]],
        counters: DiskCounters,
    ) -> None:
        """Prepare; `start` does the first I/O. ``entries`` returns the whole index, the least recent chunk first."""
        self._directory = directory
        self._identity = identity
        self._epoch = epoch
        self._snapshot_every = snapshot_every
        self._entries = entries
        self._counters = counters
        self._pending: list[bytes] = []
        self._records_since_snapshot = 0
        self._has_hole = False
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Write a snapshot and begin a new journal.

        Raises:
            OSError: as the system says.
        """
        await self._write_snapshot()

    def put(self, entry: IndexEntry) -> None:
        """Note that a chunk is now in a slot."""
        self._note(encode_put(entry))

    def delete(self, key: OffloadKey) -> None:
        """Note that a chunk is gone."""
        self._note(encode_delete(key))

    async def close(self) -> None:
        """Write what is pending as a final snapshot."""
        if self._writing is not None:
            await self._writing
        try:
            await self._write_snapshot()
        except OSError as error:
            self._failed(error)

    def _note(self, record: bytes) -> None:
        self._pending.append(record)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_behind())

    async def _write_behind(self) -> None:
        try:
            while self._pending:
                records, self._pending = self._pending, []
                self._records_since_snapshot += len(records)
                if self._records_since_snapshot >= self._snapshot_every:
                    await self._write_snapshot()
                elif not self._has_hole:
                    await self._append(b"".join(records))
        except OSError as error:
            self._failed(error)
        finally:
            self._writing = None

    def _failed(self, error: OSError) -> None:
        # Replay ends at a hole in the journal: until the next snapshot, which is due soon, appending is no use.
        self._has_hole = True
        self._records_since_snapshot = max(0, self._snapshot_every - _RECORDS_UNTIL_RETRY)
        self._counters.journal_errors += 1
        if self._counters.journal_errors == 1:
            _logger.warning("%s: the index cannot be written: %s", self._directory, error)

    async def _append(self, data: bytes) -> None:
        async with aiofiles.open(journal_path(self._directory, self._epoch), "ab", buffering=0) as file:
            if await file.write(data) != len(data):
                raise OSError(f"short write to the journal in {self._directory}")

    async def _write_snapshot(self) -> None:
        """Begin the journal of the next epoch, then replace the snapshot, then remove the journals it makes needless.

        A crash between any two of these leaves an older snapshot with all journals that follow it.
        """
        self._epoch += 1
        entries = self._entries()
        self._pending.clear()
        self._records_since_snapshot = 0
        await self._append(encode_journal_start(self._identity, self._epoch))
        target = snapshot_path(self._directory)
        unfinished = target.with_suffix(".unfinished")
        data = await asyncio.to_thread(encode_snapshot, self._identity, self._epoch, entries)
        async with aiofiles.open(unfinished, "wb") as file:
            await file.write(data)
        await aiofiles.os.replace(unfinished, target)
        self._has_hole = False
        for name in await aiofiles.os.listdir(self._directory):
            if name.endswith(".journal") and name < journal_path(self._directory, self._epoch).name:
                await aiofiles.os.remove(self._directory / name)
