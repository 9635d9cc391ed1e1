"""One root directory of a disk tier: its slabs and its index on disk, while it can be used."""

from __future__ import annotations

import asyncio
import errno
import hashlib
from pathlib import Path

from tiering.errors import PermanentTierError
from tiering.tier import TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.index_files import remove_index
from tiers.disk.journal import Journal
from tiers.disk.ownership import Layout, OwnedDirectory, acquire_directory, borrow_directory
from tiers.disk.probe import Health, inode_of, supports_direct_io, supports_direct_reads
from tiers.disk.recovery import Recovery, recover_chunks
from tiers.disk.slab import SlabFiles, remove_slabs
from tiers.disk.system_calls import SystemCalls

__all__ = ["Root"]


class Root:
    """What a disk tier holds in one root. `open` and `close` block; everything else is for the event loop thread.

    Attributes:
        idx: its number among the roots of the tier.
        num_slots: its share of the tier's slots.
        path: the root directory, as configured.
        slabs: the chunks; there once `open` has succeeded.
        has_slabs: whether they are open.
        journal: the writer of the index, while there is one.
        health: what it is good for.
        retry_at: when to try again what does not work now, by the tier's clock.
        num_failed_reads: chunks in a row that could not be read.
        inode: device and inode number of the directory; there once `open` has succeeded.
        num_in_flight: runs under way; `slabs` stay what they are until there are none.
        full_until: until when no slab grows, by the tier's clock.
        task: the check or revival under way.
    """

    slabs: SlabFiles
    inode: tuple[int, int]

    def __init__(self, idx: int, num_slots: int, slot_bytes: int, config: DiskConfig, context: TierContext) -> None:
        self.idx = idx
        self.num_slots = num_slots
        self.path = config.root_dirs[idx]
        self.journal: Journal | None = None
        self.health = Health.DEAD
        self.retry_at = 0.0
        self.num_failed_reads = 0
        self.num_in_flight = 0
        self.full_until = 0.0
        self.task: asyncio.Task[None] | None = None
        self._slot_bytes = slot_bytes
        self._config = config
        self._context = context
        self._owned: OwnedDirectory | None = None
        self.has_slabs = False

    @property
    def directory(self) -> Path:
        """The directory of the namespace in this root."""
        return self.path / self._context.namespace.fingerprint.hex()

    @property
    def is_writable(self) -> bool:
        """Whether the directory was opened for writing too."""
        return self._owned is not None and self._owned.writable

    @property
    def identity(self) -> bytes:
        """16 bytes naming the meaning of slot numbers; an index of another identity is not believed."""
        layout = f"{self._slot_bytes} {self.slabs.slots_per_slab}"
        fingerprint = self._context.namespace.fingerprint
        return hashlib.blake2b(fingerprint + layout.encode(), digest_size=16).digest()

    def open(self, system: SystemCalls, recover: str) -> Recovery:
        """Take the directory, open its slabs, and find the chunks of an earlier run; open again, if it was open.

        Nothing on disk changes but what is missing; ``recover: none`` removes slabs and index. A directory on a
        file system that takes no writes is opened for reading alone: `is_writable` says so.

        Raises:
            PermanentTierError: the directory belongs to another process, direct I/O is demanded and does not work,
                or ``recover: strict`` met a directory of another format.
            OSError: as the system says. In every case nothing stays locked or open.
        """
        self.close()
        try:
            return self._open(system, recover)
        except BaseException:
            self.close()
            raise

    def _open(self, system: SystemCalls, recover: str) -> Recovery:
        config = self._config
        strict = recover == "strict"
        wanted = Layout(self._slot_bytes, max(1, config.slab_bytes // self._slot_bytes))
        self._owned = owned = self._take_directory(wanted, strict=strict)
        self.inode = inode_of(owned.path)
        if recover == "none":
            remove_index(owned.path)
            remove_slabs(owned.path)
        self.slabs = SlabFiles(
            owned.path,
            system,
            slot_bytes=self._slot_bytes,
            slots_per_slab=owned.layout.slots_per_slab,
            num_slots=self.num_slots,
            direct=self._choose_direct_io(owned, system),
            free_space_reserve=config.free_space_reserve,
            writable=owned.writable,
        )
        self.has_slabs = True
        return recover_chunks(
            owned.path,
            self.identity,
            self.slabs,
            self._context.namespace.fingerprint,
            self._context.row_bytes,
            num_threads=config.threads,
            verify=strict,
        )

    def _take_directory(self, wanted: Layout, *, strict: bool) -> OwnedDirectory:
        try:
            return acquire_directory(self.path, self._context.namespace, wanted, strict=strict)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        return borrow_directory(self.path, self._context.namespace, wanted)

    def _choose_direct_io(self, owned: OwnedDirectory, system: SystemCalls) -> bool:
        if self._config.o_direct == "off":
            return False
        works = (supports_direct_io if owned.writable else supports_direct_reads)(owned.path, system)
        if not works and self._config.o_direct == "on":
            raise PermanentTierError(f"{owned.path} does not support O_DIRECT; allowed there: o_direct auto or off")
        return works

    def close(self) -> None:
        """Give the directory back; reads and writes must have ended. Does nothing if it is not open."""
        if self.has_slabs:
            self.has_slabs = False
            self.slabs.close()
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.close()
