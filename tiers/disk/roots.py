"""The roots of a disk tier together: opened, watched, taken out of use while they fail, and taken back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from tiering.errors import PermanentTierError
from tiering.tier import TierContext
from tiers.disk.complaints import Complaints
from tiers.disk.config import DiskConfig
from tiers.disk.counters import DiskCounters
from tiers.disk.io_queue import IoQueue
from tiers.disk.journal import Journal
from tiers.disk.probe import Health, probe
from tiers.disk.recovery import Recovery
from tiers.disk.root import Root
from tiers.disk.slots import SlotTable
from tiers.disk.system_calls import SystemCalls

__all__ = ["Roots"]

_logger = logging.getLogger(__name__)
_FAILED_READS_UNTIL_LOST = 8


class Roots:
    """The roots of one tier, in the order of the configuration. Event loop thread only.

    Any I/O error makes its root a suspect, and a suspect is probed. One that takes no writes gets none, but still
    serves reads. One whose directory has vanished is lost, and so is one from which nothing can be read while others
    work: its chunks leave the index. What does not work is tried again every ``probe_interval``; a lost root that
    works again is opened as at the start, with the chunks its own index names, and so is one whose file system took no
    writes when it was opened and takes them now.

    Attributes:
        complaints: where failures are reported.
        on_well: called with a suspect that turned out to be well.
        on_back: called with a root whose chunks have come into the table.
    """

    def __init__(
        self,
        roots: list[Root],
        config: DiskConfig,
        context: TierContext,
        system: SystemCalls,
        *,
        table: SlotTable,
        queue: IoQueue,
        counters: DiskCounters,
    ) -> None:
        """Prepare without I/O."""
        self._roots = roots
        self._config = config
        self._context = context
        self._system = system
        self._table = table
        self._queue = queue
        self._counters = counters
        self._is_closing = False
        self.on_well: Callable[[Root], None] = lambda root: None
        self.on_back: Callable[[Root], None] = lambda root: None
        self.complaints = Complaints(context.name, context.clock)

    def __iter__(self) -> Iterator[Root]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    def __getitem__(self, idx: int) -> Root:
        return self._roots[idx]

    def of(self, slot: int) -> Root:
        """Return the root in which a slot lies."""
        return self._roots[slot % len(self._roots)]

    def local(self, slot: int) -> int:
        """Return the number of a slot within its root."""
        return slot // len(self._roots)

    def unusable(self) -> list[int]:
        """Return the numbers of the roots that take no writes."""
        return [root.idx for root in self._roots if root.health is not Health.GOOD]

    def full(self) -> list[int]:
        """Return the numbers of the roots whose disk was full a short while ago."""
        now = self._context.clock()
        return [root.idx for root in self._roots if now < root.full_until]

    async def open(self) -> None:
        """Open the roots that can be used, put their chunks into the table, begin their journals.

        Raises:
            PermanentTierError: no root can be used, one belongs to another process, direct I/O is demanded and does
                not work, or ``recover: strict`` met damage, and then slabs and index files are as they were.
        """
        recoveries = await self._context.run_blocking(self._open_all)
        for root, recovery in recoveries.items():
            self._table.restore(root.idx, recovery.chunks)
            self.on_back(root)
        if len(recoveries) > 1:
            self._table.sort_by_recency()
        for root, recovery in recoveries.items():
            try:
                await self._begin(root, recovery)
            except OSError as error:
                self._journal_failed(root, error)

    def _open_all(self) -> dict[Root, Recovery]:
        recoveries = {}
        errors = []
        for root in self._roots:
            try:
                recoveries[root] = root.open(self._system, self._config.recover)
            except OSError as error:
                if self._config.recover == "strict":
                    raise
                errors.append(error)
                root.retry_at = self._context.clock() + self._config.probe_interval
                self.complaints.say("root unusable", f"{root.path} is left out: {error}")
        if not recoveries:
            raise errors[0]
        problems = [problem for recovery in recoveries.values() for problem in recovery.problems]
        if problems:
            shown = "; ".join(problems[:3])
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            if self._config.recover == "strict":
                raise PermanentTierError(f"damage found, and recover is strict: {shown}{more}")
            _logger.warning("disk tier %r: %s%s", self._context.name, shown, more)
        for root, recovery in recoveries.items():
            self._counters.damaged_headers += recovery.num_damaged
            if root.is_writable:
                root.slabs.trim()
        return recoveries

    async def _begin(self, root: Root, recovery: Recovery) -> None:
        """Put a root that was opened into use.

        Raises:
            OSError: its journal cannot be written.
        """
        if not root.is_writable:
            root.health = Health.READ_ONLY
            root.retry_at = self._context.clock() + self._config.probe_interval
            self._counters.roots_read_only += 1
            self.complaints.say("root read-only", f"{root.path} takes no writes: only what is there is served")
            return
        root.health = Health.GOOD
        root.journal = self._make_journal(root, recovery)
        await root.journal.start()

    async def close(self) -> None:
        """Write the indices and give the directories back; reads and writes must have ended."""
        self._is_closing = True
        try:
            for root in self._roots:
                if root.task is not None:
                    await root.task
                journal, root.journal = root.journal, None
                if journal is not None:
                    await journal.close(keep=root.health is not Health.DEAD)
        finally:
            self.release()

    def release(self) -> None:
        """Give the directories back at once, with nothing written."""
        for root in self._roots:
            root.close()

    def suspect(self, root: Root) -> None:
        """Find out whether a root in which something failed still works."""
        is_due = root.health is Health.GOOD or self._context.clock() >= root.retry_at
        if is_due and root.task is None and root.health is not Health.DEAD and not self._is_closing:
            self._start(root, self._check(root))

    def revive(self) -> list[asyncio.Task[None]]:
        """Try again what failed and is due; return the attempts under way."""
        now = self._context.clock()
        for root in self._roots:
            if root.task is not None or now < root.retry_at:
                continue
            if root.health is Health.READ_ONLY:
                self._start(root, self._check(root))
            elif root.health is Health.DEAD and root.num_in_flight == 0:
                self._start(root, self._reopen(root))
            elif root.journal is not None and root.journal.has_hole:
                self._start(root, self._mend(root))
        return [root.task for root in self._roots if root.task is not None]

    def _start(self, root: Root, coroutine: Coroutine[Any, Any, None]) -> None:
        root.retry_at = self._context.clock() + self._config.probe_interval

        async def run() -> None:
            try:
                await coroutine
            finally:
                root.task = None

        root.task = asyncio.create_task(run())

    async def _check(self, root: Root) -> None:
        [(health, said)] = await self._queue.read([partial(probe, root.directory, root.inode, self._system)])
        if root.num_failed_reads >= _FAILED_READS_UNTIL_LOST:
            if health is Health.GOOD:
                await self._reopen_slabs(root)
            elif any(other is not root and other.health is not Health.DEAD for other in self._roots):
                # The last root that is left is asked on: nothing is won without it, and the next read may work.
                health = Health.DEAD
        if health is Health.DEAD:
            self._counters.roots_lost += 1
            self.complaints.say("root lost", f"{root.path} is out of use: {said}")
            self._lose(root)
        elif health is Health.READ_ONLY:
            self._counters.roots_read_only += root.health is Health.GOOD
            self.complaints.say("root read-only", f"{root.path} takes no writes: {said}")
            root.health = health
        elif root.health is Health.GOOD:
            self.on_well(root)
        elif not root.is_writable:
            if root.num_in_flight == 0:
                self._lose(root)
                await self._reopen(root)
        else:
            root.health = health
            self._counters.roots_back += 1
            await self._mend(root)

    async def _reopen_slabs(self, root: Root) -> None:
        root.num_failed_reads = 0
        # Where it fails, the next reads will, and say so.
        with suppress(OSError):
            await self._queue.read([root.slabs.reopen])

    def _lose(self, root: Root) -> None:
        root.health = Health.DEAD
        root.num_failed_reads = 0
        lost = self._table.lose(root.idx)
        self._counters.lost += len(lost)
        if lost:
            self._context.report_evicted(lost)

    async def _reopen(self, root: Root) -> None:
        try:
            journal, root.journal = root.journal, None
            if journal is not None:
                await journal.close(keep=False)
            recovery = await self._context.run_blocking(root.open, self._system, "quiet")
            if root.is_writable:
                await self._context.run_blocking(root.slabs.trim)
            back = [key for key in recovery.chunks.keys if key not in self._table]
            self._table.restore(root.idx, recovery.chunks)
            self._context.report_stored(back)
            self._counters.damaged_headers += recovery.num_damaged
            self.on_back(root)
            await self._begin(root, recovery)
        except (OSError, PermanentTierError) as error:
            self._lose(root)
            self.complaints.say("root still lost", f"{root.path}: {error}")
        else:
            self._counters.roots_back += 1
            _logger.info(
                "disk tier %r: %s is back, with %d chunks", self._context.name, root.path, len(recovery.chunks)
            )

    async def _mend(self, root: Root) -> None:
        try:
            if root.journal is not None:
                await root.journal.start()
        except OSError as error:
            self._journal_failed(root, error)

    def _make_journal(self, root: Root, recovery: Recovery) -> Journal:
        return Journal(
            root.directory,
            root.identity,
            self._system,
            epoch=recovery.epoch,
            snapshot_every=self._config.snapshot_every,
            freeze=partial(self._table.freeze, root.idx),
            on_error=partial(self._journal_failed, root),
        )

    def _journal_failed(self, root: Root, error: OSError) -> None:
        self._counters.journal_errors += 1
        self.complaints.say("index not written", f"{root.path}: {error}")
        self.suspect(root)
