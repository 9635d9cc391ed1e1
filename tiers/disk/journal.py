"""The writer of a root's index on disk: changes go to a journal, now and then the whole index to a snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiofiles.os
from aiofiles.threadpool.binary import AsyncFileIO

from tiering.keys import OffloadKey
from tiers.disk.index_columns import FrozenTable
from tiers.disk.index_files import (
    encode_deletes,
    encode_journal_start,
    encode_puts,
    encode_snapshot,
    journal_path,
    remove_index,
    snapshot_path,
)
from tiers.disk.system_calls import SystemCalls

__all__ = ["Journal"]

_RECORDS_UNTIL_RETRY = 1000
# An append costs as much as the bookkeeping of fifty chunks, so a busy tier does it for many at a time.
_GATHERING_SECONDS = 0.02


class Journal:
    """Writes index changes behind the caller's back, in their order, many in one append.

    All methods run on the event loop thread. A failed write is reported and costs nothing but chunks not found after
    a restart; the next successful snapshot makes up for it.

    Attributes:
        has_hole: whether something could not be written, so that a snapshot is wanted.
    """

    def __init__(
        self,
        directory: Path,
        identity: bytes,
        system: SystemCalls,
        *,
        epoch: int,
        snapshot_every: int,
        freeze: Callable[[], FrozenTable],
        on_error: Callable[[OSError], None],
    ) -> None:
        """Prepare; `start` does the first I/O.

        Args:
            epoch: the highest epoch used so far.
            snapshot_every: records between two snapshots.
            freeze: returns the whole index as it is now.
            on_error: called after each failed write.
        """
        self._directory = directory
        self._identity = identity
        self._system = system
        self._epoch = epoch
        self._snapshot_every = snapshot_every
        self._freeze = freeze
        self._on_error = on_error
        self._file: AsyncFileIO | None = None
        self._pending: list[bytes] = []
        self._records_since_snapshot = 0
        self.has_hole = False
        self._lock = asyncio.Lock()
        self._gathering: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Write a snapshot and begin a new journal; also afterwards, to mend what could not be written.

        Raises:
            OSError: as the system says.
        """
        async with self._changing():
            await self._write_snapshot()

    def put(self, chunks: Iterable[tuple[OffloadKey, int, int]]) -> None:
        """Note that chunks, each with its slot within this root and its generation, are now there."""
        self._note(encode_puts(chunks))

    def delete(self, keys: Iterable[OffloadKey]) -> None:
        """Note that chunks are gone."""
        self._note(encode_deletes(keys))

    async def settled(self) -> None:
        """Wait until everything noted so far was written or has failed."""
        while self._gathering is not None or self._writing is not None:
            await (self._writing or self._begin_writing())

    async def close(self, *, keep: bool = True) -> None:
        """End, with a final snapshot if ``keep``; else what was not written yet is not written any more."""
        await self.settled()
        if keep:
            try:
                async with self._changing():
                    await self._write_snapshot()
            except OSError as error:
                self._on_error(error)
        await self._close_file()

    def _note(self, records: list[bytes]) -> None:
        self._pending += records
        self._gather()

    def _gather(self) -> None:
        if self._pending and self._gathering is None and self._writing is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHERING_SECONDS, self._begin_writing)

    def _begin_writing(self) -> asyncio.Task[None]:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._writing = asyncio.get_running_loop().create_task(self._write_behind())
        return self._writing

    async def _write_behind(self) -> None:
        try:
            async with self._changing():
                await self._write_pending()
        except OSError as error:
            self._on_error(error)
        finally:
            self._writing = None
            self._gather()

    async def _write_pending(self) -> None:
        records, self._pending = self._pending, []
        self._records_since_snapshot += len(records)
        if not self.has_hole and self._file is not None:
            await self._system.append(self._file, b"".join(records))
        if self._records_since_snapshot >= self._snapshot_every:
            await self._write_snapshot()

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Let one coroutine at a time change the files; where it cannot, leave none."""
        async with self._lock:
            try:
                yield
            except OSError as error:
                # Replay ends at a hole in the journal: until the next snapshot, which is due soon, appending is no use.
                self.has_hole = True
                self._records_since_snapshot = max(0, self._snapshot_every - _RECORDS_UNTIL_RETRY)
                # Files that somebody removed may have been made anew by another owner.
                if not isinstance(error, FileNotFoundError):
                    # With an index that ends early the next run would forget what came later; with none it reads all
                    # headers. On a full disk this also makes room for the snapshot.
                    with suppress(OSError):
                        await asyncio.to_thread(remove_index, self._directory)
                raise

    async def _write_snapshot(self) -> None:
        """Begin the journal of the next epoch, then replace the snapshot, then remove the journals it makes needless.

        A crash between any two of these leaves an older snapshot with all journals that follow it.
        """
        self._epoch += 1
        self._pending.clear()
        self._records_since_snapshot = 0
        frozen = self._freeze()
        await self._close_file()
        self._file = await self._system.open_journal(journal_path(self._directory, self._epoch))
        await self._system.append(self._file, encode_journal_start(self._identity, self._epoch))
        target = snapshot_path(self._directory)
        unfinished = target.with_suffix(".unfinished")
        data = await asyncio.to_thread(self._encode, self._epoch, frozen)
        await self._system.write_file(unfinished, data)
        await self._system.replace(unfinished, target)
        self.has_hole = False
        for name in await aiofiles.os.listdir(self._directory):
            if name.endswith(".journal") and name < journal_path(self._directory, self._epoch).name:
                await aiofiles.os.remove(self._directory / name)

    def _encode(self, epoch: int, frozen: FrozenTable) -> bytes:
        return encode_snapshot(self._identity, epoch, frozen.columns())

    async def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # The system has closed it even where it reports an error.
            with suppress(OSError):
                await file.close()
