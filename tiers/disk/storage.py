"""The directories and slabs of one disk tier, taken, checked and given back together."""

from __future__ import annotations

import hashlib
import json
import logging

from tiering.errors import PermanentTierError
from tiering.tier import TierContext
from tiers.disk.config import DiskConfig
from tiers.disk.index_files import remove_index
from tiers.disk.ownership import Layout, OwnedDirectory, acquire_directory
from tiers.disk.recovery import Recovery, recover_chunks
from tiers.disk.slab import SlabFiles, remove_slabs, supports_direct_io

__all__ = ["DiskStorage"]

_logger = logging.getLogger(__name__)


class DiskStorage:
    """What a disk tier holds on disk while it is open. All methods block.

    Attributes:
        roots: the slabs, one entry per root.
        index_dir: where the index files lie: the first root's directory.
        identity: 16 bytes naming the meaning of slot numbers; an index of another identity is not believed.
    """

    def __init__(self, config: DiskConfig, context: TierContext, slot_bytes: int, num_slots: int) -> None:
        """Take the directory of the namespace in each root, and open its slabs.

        Raises:
            PermanentTierError: a directory belongs to another process, direct I/O is demanded and does not work,
                or ``recover: strict`` met a directory of another format.
            OSError: as the system says. In every case nothing stays locked or open.
        """
        self._config = config
        self._context = context
        self._owned: list[OwnedDirectory] = []
        self.roots: list[SlabFiles] = []
        try:
            for root_idx in range(len(config.root_dirs)):
                self._open_root(root_idx, slot_bytes, num_slots)
        except BaseException:
            self.close()
            raise
        self.index_dir = self._owned[0].path
        layout = [(str(owned.path), owned.layout.slot_bytes, owned.layout.slots_per_slab) for owned in self._owned]
        self.identity = hashlib.blake2b(json.dumps(layout).encode(), digest_size=16).digest()

    def _open_root(self, root_idx: int, slot_bytes: int, num_slots: int) -> None:
        config = self._config
        owned = acquire_directory(
            config.root_dirs[root_idx],
            self._context.namespace,
            Layout(slot_bytes, max(1, config.slab_bytes // slot_bytes)),
            strict=config.recover == "strict",
        )
        self._owned.append(owned)
        starts_empty = config.recover == "none"
        if starts_empty or root_idx > 0:
            # The index of a time when this root came first would be out of date.
            remove_index(owned.path)
        if starts_empty:
            remove_slabs(owned.path)
        num_roots = len(config.root_dirs)
        self.roots.append(
            SlabFiles(
                owned.path,
                slot_bytes=slot_bytes,
                slots_per_slab=owned.layout.slots_per_slab,
                num_slots=(num_slots - root_idx + num_roots - 1) // num_roots,
                direct=self._choose_direct_io(owned),
                free_space_reserve=config.free_space_reserve,
            )
        )

    def _choose_direct_io(self, owned: OwnedDirectory) -> bool:
        if self._config.o_direct == "off":
            return False
        works = supports_direct_io(owned.path)
        if not works and self._config.o_direct == "on":
            raise PermanentTierError(f"{owned.path} does not support O_DIRECT; allowed there: o_direct auto or off")
        return works

    def recover(self) -> Recovery:
        """Find the chunks of an earlier run, and give back the disk space beyond the capacity.

        Raises:
            PermanentTierError: ``recover: strict`` met damage; all slabs and index files are as they were.
            OSError: as the system says.
        """
        strict = self._config.recover == "strict"
        namespace = self._context.namespace
        recovery = recover_chunks(
            self.index_dir, self.identity, self.roots, namespace.fingerprint, self._context.row_bytes, verify=strict
        )
        if recovery.problems:
            shown = "; ".join(recovery.problems[:3])
            more = f"; and {len(recovery.problems) - 3} more" if len(recovery.problems) > 3 else ""
            if strict:
                raise PermanentTierError(f"damage found, and recover is strict: {shown}{more}")
            _logger.warning("disk tier %r: %s%s", self._context.name, shown, more)
        for root in self.roots:
            root.trim()
        return recovery

    def close(self) -> None:
        """Give everything back; reads and writes must have ended."""
        for files in self.roots:
            files.close()
        for owned in self._owned:
            owned.close()
        self.roots.clear()
        self._owned.clear()
