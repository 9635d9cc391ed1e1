"""A file system that hands every request on to a real directory, unless a file says that it shall fail.

It speaks the kernel's FUSE protocol over ``/dev/fuse`` itself, so that nothing has to be installed. Run as a program it
serves one mount until that is unmounted: ``faulty_fs.py BACKING MOUNT_POINT FAULTS``. ``FAULTS`` is a JSON file, read
anew for each request::

    {"read": {"errno": "EIO", "from": 0, "to": 4096}, "create": {"errno": "EROFS"}}

An operation named there fails; with ``from`` and ``to`` it fails only where it touches these bytes of a file. All reads
and writes reach this program, past the page cache. There are no links and no attributes beyond size and mode.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_MAX_TRANSFER = 2**20
_IN_HEADER = struct.Struct("<IIQQIIIHH")
_OUT_HEADER = struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_TRANSFER = struct.Struct("<QQIIQII")
_NO_REPLY = {2, 36, 42}  # forget, interrupt, batch forget
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_FOPEN_DIRECT_IO = 1
_SET_MODE, _SET_SIZE = 1 << 0, 1 << 3


class FaultyFileSystem:
    """Answers requests; a method per operation takes the node number and the request's body and returns the answer."""

    def __init__(self, backing: Path, faults: Path) -> None:
        self._faults = faults
        self._paths = {1: backing}
        self._node_of: dict[Path, int] = {}
        self.operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: self.lookup,
            3: self.getattr,
            4: self.setattr,
            9: self.mkdir,
            10: self.unlink,
            11: self.rmdir,
            12: self.rename,
            14: self.open,
            15: self.read,
            16: self.write,
            17: self.statfs,
            18: self.release,
            20: self.nothing,
            25: self.nothing,
            26: self.init,
            27: self.nothing_open,
            28: self.readdir,
            29: self.nothing,
            35: self.create,
            43: self.fallocate,
            45: self.rename2,
        }

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """Perform one request.

        Raises:
            OSError: what the kernel shall say to the caller.
        """
        operation = self.operations.get(opcode)
        if operation is None:
            raise OSError(errno.ENOSYS, "not here")
        self._fail_if_told(operation.__name__, body)
        return operation(node, body)

    def _fail_if_told(self, name: str, body: bytes) -> None:
        fault = json.loads(self._faults.read_bytes()).get(name)
        if fault is None:
            return
        if "from" in fault:
            _, offset, size, *_ = _TRANSFER.unpack_from(body)
            if offset >= fault["to"] or offset + size <= fault["from"]:
                return
        raise OSError(getattr(errno, fault["errno"]), "as told")

    # -- names --------------------------------------------------------------------------------------------------------

    def lookup(self, node: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def mkdir(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[8:])
        path.mkdir()
        return self._entry(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        return self._remove(self._child(node, body), os.unlink)

    def rmdir(self, node: int, body: bytes) -> bytes:
        return self._remove(self._child(node, body), os.rmdir)

    def _remove(self, path: Path, remove: Callable[[Path], None]) -> bytes:
        remove(path)
        self._node_of.pop(path, None)
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 8)

    def rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _rename(self, node: int, body: bytes, names_at: int) -> bytes:
        (new_parent,) = struct.unpack_from("<Q", body)
        old_name, new_name, _ = body[names_at:].split(b"\0")
        old, new = self._child(node, old_name), self._child(new_parent, new_name)
        old.rename(new)
        self._node_of.pop(new, None)
        for path, number in list(self._node_of.items()):
            if path.is_relative_to(old):
                moved = self._paths[number] = new / path.relative_to(old)
                self._node_of[moved] = self._node_of.pop(path)
        return b""

    def readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size, *_ = _TRANSFER.unpack_from(body)
        answer = b""
        for place, name in enumerate(sorted(os.listdir(self._paths[node]))[offset:], offset + 1):
            entry = struct.pack("<QQII", 1, place, len(name), 0) + name.encode()
            entry += bytes(-len(entry) % 8)
            if len(answer) + len(entry) > size:
                break
            answer += entry
        return answer

    def _child(self, node: int, name: bytes) -> Path:
        return self._paths[node] / os.fsdecode(name.split(b"\0")[0])

    def _entry(self, path: Path) -> bytes:
        attributes = self._attributes(path)
        node = self._node_of.setdefault(path, len(self._paths) + 1)
        self._paths[node] = path
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + attributes

    # -- attributes ---------------------------------------------------------------------------------------------------

    def getattr(self, node: int, _body: bytes) -> bytes:
        return bytes(16) + self._attributes(self._paths[node])

    def setattr(self, node: int, body: bytes) -> bytes:
        valid, _, size = struct.unpack_from("<Q Q Q", body)
        if valid & _SET_SIZE:
            os.truncate(self._paths[node], size)
        if valid & _SET_MODE:
            os.chmod(self._paths[node], struct.unpack_from("<I", body, 68)[0])
        return self.getattr(node, b"")

    @staticmethod
    def _attributes(path: Path) -> bytes:
        found = path.lstat()
        times = [int(time) for time in (found.st_atime, found.st_mtime, found.st_ctime)]
        return _ATTRIBUTES.pack(
            found.st_ino,
            found.st_size,
            found.st_blocks,
            *times,
            0,
            0,
            0,
            found.st_mode,
            found.st_nlink,
            0,
            0,
            0,
            4096,
            0,
        )

    def statfs(self, node: int, _body: bytes) -> bytes:
        space = os.statvfs(self._paths[node])
        numbers = (space.f_blocks, space.f_bfree, space.f_bavail, space.f_files, space.f_ffree)
        return struct.pack("<5Q4I24x", *numbers, space.f_bsize, space.f_namemax, space.f_frsize, 0)

    # -- contents -----------------------------------------------------------------------------------------------------

    def open(self, node: int, body: bytes) -> bytes:
        return self._opened(os.open(self._paths[node], self._flags(body)))

    def create(self, node: int, body: bytes) -> bytes:
        path = self._child(node, body[16:])
        fd = os.open(path, self._flags(body) | os.O_CREAT, 0o600)
        return self._entry(path) + self._opened(fd)

    @staticmethod
    def _flags(body: bytes) -> int:
        (flags,) = struct.unpack_from("<I", body)
        return int(flags) & ~(os.O_DIRECT | os.O_APPEND)

    @staticmethod
    def _opened(handle: int) -> bytes:
        return struct.pack("<QII", handle, _FOPEN_DIRECT_IO, 0)

    def read(self, _node: int, body: bytes) -> bytes:
        handle, offset, size, *_ = _TRANSFER.unpack_from(body)
        return os.pread(handle, size, offset)

    def write(self, _node: int, body: bytes) -> bytes:
        handle, offset, size, *_ = _TRANSFER.unpack_from(body)
        return struct.pack("<II", os.pwrite(handle, body[_TRANSFER.size :][:size], offset), 0)

    def fallocate(self, _node: int, body: bytes) -> bytes:
        handle, offset, length, mode = struct.unpack_from("<QQQI", body)
        if mode:
            raise OSError(errno.EOPNOTSUPP, "not here")
        os.posix_fallocate(handle, offset, length)
        return b""

    def release(self, _node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    # -- the rest -----------------------------------------------------------------------------------------------------

    def init(self, _node: int, _body: bytes) -> bytes:
        max_pages = _MAX_TRANSFER // 4096
        return struct.pack(
            "<IIIIHHIIHH32x", 7, 31, _MAX_TRANSFER, _BIG_WRITES | _MAX_PAGES, 16, 12, _MAX_TRANSFER, 1, max_pages, 0
        )

    def nothing(self, _node: int, _body: bytes) -> bytes:
        return b""

    def nothing_open(self, _node: int, _body: bytes) -> bytes:
        return bytes(16)


def serve(device: int, file_system: FaultyFileSystem) -> None:
    """Answer requests from ``device``, an open ``/dev/fuse`` that is mounted, until it is unmounted."""
    while True:
        try:
            request = os.read(device, _MAX_TRANSFER + 65536)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node, *_ = _IN_HEADER.unpack_from(request)
        if opcode in _NO_REPLY:
            continue
        try:
            code, answer = 0, file_system.answer(opcode, node, request[_IN_HEADER.size :])
        except OSError as error:
            code, answer = -(error.errno or errno.EIO), b""
        os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(answer), code, unique) + answer)


def mount(mount_point: Path) -> int:
    """Mount and return the open ``/dev/fuse`` to be served.

    Raises:
        OSError: the kernel or the rights of this process do not allow it.
    """
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0,max_read={_MAX_TRANSFER}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"faulty_fs", os.fsencode(mount_point), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount", str(mount_point))
    return device


if __name__ == "__main__":
    backing_argument, mount_point_argument, faults_argument = map(Path, sys.argv[1:])
    mounted = mount(mount_point_argument)
    print("mounted", flush=True)
    serve(mounted, FaultyFileSystem(backing_argument, faults_argument))
