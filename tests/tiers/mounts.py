"""File systems of the running kernel, mounted for one test; where that is not possible the test is skipped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_GET_FLAGS, _SET_FLAGS = 0x80086601, 0x40086602
_IMMUTABLE = 0x10


def run(*command: object, what: str) -> None:
    """Run a command of the system, or skip the test if it does not work here."""
    try:
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip(f"{what}: there is no {command[0]} here")
    if done.returncode != 0:
        pytest.skip(f"{what}: {done.stderr.splitlines()[0] if done.stderr else done.returncode}")


@contextlib.contextmanager
def mounted(place: Path, *arguments: object) -> Iterator[Path]:
    """Mount at ``place``, made for it; unmount at the end also if files are still open there."""
    place.mkdir(parents=True)
    run("mount", *arguments, place, what=f"needs the right to mount ({' '.join(map(str, arguments))})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def tmpfs(place: Path, size: str) -> Iterator[Path]:
    with mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs") as path:
        yield path


@contextlib.contextmanager
def ramfs(place: Path) -> Iterator[Path]:
    """The plainest file system: neither direct I/O nor preallocation."""
    with mounted(place, "-t", "ramfs", "ramfs") as path:
        yield path


@contextlib.contextmanager
def on_loop_device(place: Path, kind: str, size: int, options: str = "") -> Iterator[Path]:
    """A file system of ``size`` bytes in an image file; ``kind`` is ext4, or ext2, which cannot preallocate."""
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    run("mke2fs", "-q", "-F", "-t", kind, "-m", 0, image, what=f"needs {kind}")
    with mounted(place, "-o", f"loop{options}", image) as path:
        yield path


def remount(place: Path, how: str) -> None:
    """Change a mounted file system to ``ro`` or ``rw``."""
    run("mount", "-o", f"remount,{how}", place, what="needs the right to remount")


@contextlib.contextmanager
def read_only_view(place: Path, of: Path) -> Iterator[Path]:
    """Another way to a mounted directory, through which nothing can be written."""
    with mounted(place, "--bind", of) as path:
        remount(path, "bind,ro")
        yield path


@contextlib.contextmanager
def overlay(place: Path) -> Iterator[Path]:
    layers = {name: place.with_suffix(f".{name}") for name in ("lower", "upper", "work")}
    for path in layers.values():
        path.mkdir()
    options = ",".join(f"{name}dir={path}" for name, path in layers.items())
    with mounted(place, "-t", "overlay", "-o", options, "overlay") as path:
        yield path


class Faulty:
    """A mounted `faulty_fs`.

    Attributes:
        path: the mount point.
        backing: where its files really lie.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.backing = path.with_suffix(".backing")
        self._faults = path.with_suffix(".faults")
        self.fail()

    def fail(self, **faults: dict[str, object]) -> None:
        """Let just these operations fail from now on; see `faulty_fs`."""
        unfinished = self._faults.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(faults))
        unfinished.replace(self._faults)

    def kill(self) -> None:
        """Let every call from now on fail, as after the loss of the device."""
        self._process.kill()
        self._process.wait()

    @contextlib.contextmanager
    def serving(self) -> Iterator[Faulty]:
        self.backing.mkdir()
        self.path.mkdir()
        program = Path(__file__).with_name("faulty_fs.py")
        arguments = [sys.executable, program, self.backing, self.path, self._faults]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            self._process = process
            if process.stdout is None or process.stdout.readline() != "mounted\n":
                pytest.skip(f"needs FUSE and the right to mount: {process.communicate()[1].strip().splitlines()[-1]}")
            try:
                yield self
            finally:
                self.fail()
                subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@contextlib.contextmanager
def faulty(place: Path) -> Iterator[Faulty]:
    with Faulty(place).serving() as file_system:
        yield file_system


@contextlib.contextmanager
def immutable(*paths: Path) -> Iterator[None]:
    """Take the right to change these files and directories even from root, as ``chattr +i`` does."""
    done: list[tuple[Path, int]] = []
    try:
        for path in paths:
            before = _flags(path)
            try:
                _flags(path, before | _IMMUTABLE)
            except OSError as error:
                pytest.skip(f"needs the right to make a file immutable: {error}")
            done.append((path, before))
        yield
    finally:
        for path, before in done:
            _flags(path, before)


def _flags(path: Path, new: int | None = None) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        if new is not None:
            fcntl.ioctl(fd, _SET_FLAGS, struct.pack("L", new))
        (flags,) = struct.unpack("L", fcntl.ioctl(fd, _GET_FLAGS, bytes(8)))
        return int(flags)
    finally:
        os.close(fd)
