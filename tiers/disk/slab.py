"""The slab files of one root directory, moved in whole slots."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tiers.disk.system_calls import SystemCalls

__all__ = ["SlabFiles", "remove_slabs"]

_logger = logging.getLogger(__name__)
_MAX_IOVECS = os.sysconf("SC_IOV_MAX")
_EXTENT_BYTES = 64 * 2**20

_VectoredCall = Callable[[int, Sequence[memoryview], int], int]


class SlabFiles:
    """Fixed slots in files of ``slots_per_slab`` slots each; slots are numbered from 0 within this root.

    `read`, `write` and `grow` may run on several threads at once, as long as no two calls of which one writes share a
    slot. All methods but `has_slot`, `has_slots` and `wants_growth` block.

    Attributes:
        direct: whether the page cache is bypassed, so that addresses and lengths of buffers must be multiples of
            `PAGE_BYTES`. Turns False for good when the file system refuses.
    """

    def __init__(
        self,
        directory: Path,
        system: SystemCalls,
        *,
        slot_bytes: int,
        slots_per_slab: int,
        num_slots: int,
        direct: bool,
        free_space_reserve: int,
        writable: bool = True,
    ) -> None:
        """Open the slabs that exist; `write`, `grow` and `trim` are for those that are ``writable``.

        Raises:
            OSError: a slab cannot be opened; none is left open.
        """
        self.directory = directory
        self.slot_bytes = slot_bytes
        self.slots_per_slab = slots_per_slab
        self.num_slots = num_slots
        self.direct = direct
        self._system = system
        self._free_space_reserve = free_space_reserve
        self._writable = writable
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._num_bytes: dict[int, int] = {}
        try:
            for slab in _slabs(directory):
                self._open(slab)
        except OSError:
            self.close()
            raise

    def trim(self) -> None:
        """Give back the disk space of slots that there are no more: an earlier run had a larger capacity.

        Raises:
            OSError: as the system says.
        """
        for slab, fd in list(self._fds.items()):
            room = self._room(slab)
            if room == 0:
                os.close(self._fds.pop(slab))
                del self._num_bytes[slab]
                self._path(slab).unlink()
            elif self._num_bytes[slab] > room:
                os.ftruncate(fd, room)
                self._num_bytes[slab] = room

    def close(self) -> None:
        """Close the files; reads and writes must have ended."""
        while self._fds:
            _, fd = self._fds.popitem()
            # The system has closed it even where it reports an error; what a late error means for a chunk its
            # checksum will tell.
            with suppress(OSError):
                os.close(fd)

    def reopen(self) -> None:
        """Open the files anew, while reads and writes go on: what was open belongs to a mount that is gone, perhaps.

        Raises:
            OSError: as the system says; the other files are then as they were.
        """
        with self._lock:
            for slab, fd in self._fds.items():
                fresh = self._system.open(self._path(slab), self._flags())
                os.dup2(fresh, fd, inheritable=False)
                os.close(fresh)

    def has_slot(self, slot: int) -> bool:
        """Say whether the slot has a number in use and lies inside its slab as that was found or grown."""
        slab, offset = self._place(slot)
        return slot < self.num_slots and offset + self.slot_bytes <= self._num_bytes.get(slab, 0)

    def has_slots(self, slots: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Say `has_slot` for many slots."""
        num_slabs = -(-self.num_slots // self.slots_per_slab)
        slots_in_slab = np.array([self._num_bytes.get(slab, 0) // self.slot_bytes for slab in range(num_slabs)], "u8")
        in_use = slots < np.uint64(self.num_slots)
        slabs, places = np.divmod(np.where(in_use, slots, np.uint64(0)), np.uint64(self.slots_per_slab))
        return in_use & (places < slots_in_slab[slabs])

    def read(self, first_slot: int, buffers: list[memoryview]) -> None:
        """Fill ``buffers`` from ``first_slot`` on, not beyond its slab; what lies behind the end of file stays as is.

        Raises:
            FileNotFoundError: the slab does not exist.
            OSError: as the system says.
        """
        slab, offset = self._place(first_slot)
        if slab not in self._fds:
            raise FileNotFoundError(errno.ENOENT, "no such slab", str(self._path(slab)))
        self._transfer(self._system.preadv, self._fds[slab], buffers, offset)

    def write(self, first_slot: int, buffers: list[memoryview]) -> None:
        """Write ``buffers``, whole slots not reaching beyond one slab, from ``first_slot`` on.

        Raises:
            OSError: as the system says; ENOSPC also where the free-space reserve would be touched. The slots may
                then hold anything.
        """
        slab, offset = self._place(first_slot)
        num_bytes = sum(map(len, buffers))
        self._back(slab, offset + num_bytes)
        if self._transfer(self._system.pwritev, self._fds[slab], buffers, offset) != num_bytes:
            raise OSError(errno.EIO, "the file system took nothing", str(self._path(slab)))

    def wants_growth(self, slot: int) -> bool:
        """Say whether writes up to ``slot`` bring the end of the disk space so near that `grow` is worth while."""
        slab = slot // self.slots_per_slab
        return self._num_bytes.get(slab, 0) < self._bytes_ahead(slot)

    def grow(self, slot: int) -> None:
        """Get disk space for the slots behind ``slot``, so that writes to them need not.

        Raises:
            OSError: as the system says.
        """
        self._back(slot // self.slots_per_slab, self._bytes_ahead(slot))

    def _bytes_ahead(self, slot: int) -> int:
        slab, offset = self._place(slot)
        return min(offset + self.slot_bytes + _EXTENT_BYTES // 2, self._room(slab))

    def _place(self, slot: int) -> tuple[int, int]:
        slab, slot_in_slab = divmod(slot, self.slots_per_slab)
        return slab, slot_in_slab * self.slot_bytes

    def _room(self, slab: int) -> int:
        """Return the bytes that a slab may have."""
        return max(0, min(self.slots_per_slab, self.num_slots - slab * self.slots_per_slab)) * self.slot_bytes

    def _path(self, slab: int) -> Path:
        return self.directory / f"slab-{slab:06d}.kv"

    def _flags(self) -> int:
        return (os.O_RDWR if self._writable else os.O_RDONLY) | (os.O_DIRECT if self.direct else 0)

    def _open(self, slab: int) -> None:
        self._fds[slab] = fd = self._system.open(
            self._path(slab), self._flags() | (os.O_CREAT if self._writable else 0)
        )
        self._num_bytes[slab] = os.fstat(fd).st_size

    def _back(self, slab: int, needed_bytes: int) -> None:
        """Give the slab disk space up to ``needed_bytes``, and ahead of need where there is plenty."""
        if needed_bytes <= self._num_bytes.get(slab, -1):
            return
        with self._lock:
            if slab not in self._fds:
                self._open(slab)
            have = self._num_bytes[slab]
            if needed_bytes <= have:
                return
            ahead = min(max(needed_bytes, have + _EXTENT_BYTES), self._room(slab))
            try:
                self._allocate(slab, have, ahead)
            except OSError as error:
                if error.errno != errno.ENOSPC or ahead == needed_bytes:
                    raise
                self._allocate(slab, have, needed_bytes)

    def _allocate(self, slab: int, have: int, wanted: int) -> None:
        fd = self._fds[slab]
        if self._free_space_reserve:
            space = os.fstatvfs(fd)
            if space.f_bavail * space.f_frsize - (wanted - have) < self._free_space_reserve:
                raise OSError(errno.ENOSPC, "the free-space reserve is reached", str(self.directory))
        try:
            self._system.allocate(fd, have, wanted - have)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.ftruncate(fd, wanted)
        self._num_bytes[slab] = wanted

    def _transfer(self, call: _VectoredCall, fd: int, buffers: list[memoryview], offset: int) -> int:
        """Move all of ``buffers``, in as many calls as the system wants; return the bytes moved before end of file."""
        moved = 0
        while buffers:
            was_direct = self.direct
            try:
                count = call(fd, buffers[:_MAX_IOVECS], offset + moved)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno != errno.EINVAL or not was_direct:
                    raise
                self._leave_direct_io()
                continue
            if count == 0:
                break
            moved += count
            buffers = _behind(buffers, count)
        return moved

    def _leave_direct_io(self) -> None:
        with self._lock:
            if not self.direct:
                return
            self.direct = False
            for fd in self._fds.values():
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_DIRECT)
        _logger.warning("%s: the file system refused direct I/O; going on with buffered I/O", self.directory)


def _behind(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of ``buffers`` behind their first ``count`` bytes."""
    for place, buffer in enumerate(buffers):
        if count < len(buffer):
            return [buffer[count:], *buffers[place + 1 :]]
        count -= len(buffer)
    return []


def _slabs(directory: Path) -> dict[int, Path]:
    paths = {path.stem.removeprefix("slab-"): path for path in directory.glob("slab-*.kv")}
    return {int(number): path for number, path in paths.items() if number.isdecimal()}


def remove_slabs(directory: Path) -> None:
    """Remove all slab files. Blocks."""
    for path in _slabs(directory).values():
        path.unlink()
