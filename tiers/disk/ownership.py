"""The directory of one namespace under one root: who owns it, and how its slabs are laid out."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tiering.errors import PermanentTierError
from tiering.naming import Namespace

__all__ = ["Layout", "OwnedDirectory", "acquire_directory", "borrow_directory"]

_logger = logging.getLogger(__name__)
_LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How slabs are cut into slots; fixed when a directory is made.

    Attributes:
        slot_bytes: size of a slot, with header page and padding.
        slots_per_slab: slots in a slab file.
        format_version: version of everything in the directory.
    """

    slot_bytes: int
    slots_per_slab: int
    format_version: int = _LAYOUT_VERSION


class OwnedDirectory:
    """A directory that this process alone uses until `close`; a forked child does not own it.

    Attributes:
        path: the directory.
        layout: its layout.
        writable: whether it is really owned; else it is borrowed from a file system that takes no writes.
    """

    def __init__(self, path: Path, layout: Layout, lock_fd: int | None, *, writable: bool = True) -> None:
        self.path = path
        self.layout = layout
        self.writable = writable
        self._lock_fd = lock_fd
        _owned.add(self)

    def close(self) -> None:
        """Let another process own the directory."""
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            # The system has closed it even where it reports an error.
            with suppress(OSError):
                os.close(fd)


_owned: weakref.WeakSet[OwnedDirectory] = weakref.WeakSet()


def _close_inherited_locks() -> None:
    # A lock lasts as long as any process has it open: a child that lives on would keep the next owner out.
    for directory in list(_owned):
        directory.close()


os.register_at_fork(after_in_child=_close_inherited_locks)


def acquire_directory(root: Path, namespace: Namespace, wanted: Layout, *, strict: bool) -> OwnedDirectory:
    """Make or take over the directory of ``namespace`` under ``root``. Blocks.

    An existing layout is kept, except that one of another format version or slot size cannot be used: then the
    whole directory is set aside under a new name, untouched.

    Raises:
        PermanentTierError: another process owns the directory, or, if ``strict``, what it says about itself is
            not what this release would write there.
        OSError: as the system says. In every case nothing stays locked.
    """
    path = root / namespace.fingerprint.hex()
    path.mkdir(parents=True, exist_ok=True)
    lock_fd = _lock(path)
    try:
        layout = _read_layout(path / "layout.json", wanted)
        if layout is None:
            if strict:
                raise PermanentTierError(
                    f"{path} holds slabs of another format; allowed: format version {_LAYOUT_VERSION} with slots of "
                    f"{wanted.slot_bytes} bytes (recover: quiet sets the directory aside)"
                )
            aside = _unused_name(path)
            path.rename(aside)
            _logger.warning("%s holds slabs of another format; it was set aside as %s", path, aside)
        else:
            _write_if_changed(path / "namespace.json", namespace.to_json(), strict=strict)
            _write_if_changed(path / "layout.json", json.dumps(asdict(layout)), strict=strict)
            return OwnedDirectory(path, layout, lock_fd)
    except BaseException:
        os.close(lock_fd)
        raise
    os.close(lock_fd)
    return acquire_directory(root, namespace, wanted, strict=strict)


def borrow_directory(root: Path, namespace: Namespace, wanted: Layout) -> OwnedDirectory:
    """Take the directory of ``namespace`` on a file system that takes no writes, along with others who do. Blocks.

    The lock is shared, and there is none where no owner has left its file: nothing can be written here, and a load
    believes only what verifies.

    Raises:
        PermanentTierError: a process that can write there owns the directory.
        OSError: as the system says; ENOENT where there is no directory, EROFS where its slabs cannot be used. In
            every case nothing stays locked.
    """
    path = root / namespace.fingerprint.hex()
    path.stat()
    lock_fd = _lock_shared(path)
    try:
        layout = _read_layout(path / "layout.json", wanted)
        if layout is None:
            raise OSError(errno.EROFS, "holds slabs of another format and cannot be set aside", str(path))
    except BaseException:
        if lock_fd is not None:
            os.close(lock_fd)
        raise
    return OwnedDirectory(path, layout, lock_fd, writable=False)


def _lock_shared(path: Path) -> int | None:
    try:
        fd = os.open(path / "owner.lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    _flock(fd, fcntl.LOCK_SH, path)
    return fd


def _lock(path: Path) -> int:
    fd = os.open(path / "owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    _flock(fd, fcntl.LOCK_EX, path)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _flock(fd: int, how: int, path: Path) -> None:
    """Lock an open file; where that fails it is closed."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace") or "unknown"
        os.close(fd)
        raise PermanentTierError(
            f"{path} is in use by process {holder}; allowed: one engine per directory, so stop that one or give this "
            f"one other root_dirs"
        ) from None
    except OSError:
        os.close(fd)
        raise


def _read_layout(path: Path, wanted: Layout) -> Layout | None:
    """Return the layout on disk, ``wanted`` where there is none, or None where it cannot be used."""
    try:
        layout = Layout(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return wanted
    except (ValueError, TypeError):
        return None
    usable = (wanted.format_version, wanted.slot_bytes) == (layout.format_version, layout.slot_bytes)
    return layout if usable and isinstance(layout.slots_per_slab, int) and layout.slots_per_slab > 0 else None


def _unused_name(path: Path) -> Path:
    number = 0
    while (name := path.with_name(f"{path.name}.set-aside-{number}")).exists():
        number += 1
    return name


def _write_if_changed(path: Path, text: str, *, strict: bool) -> None:
    """Write ``text`` so that a reader sees the old file or the new one."""
    if path.exists():
        if path.read_bytes() == text.encode():
            return
        if strict:
            raise PermanentTierError(f"{path} was changed; allowed: what this namespace wrote there")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)
