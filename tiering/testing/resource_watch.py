"""What a process holds that the garbage collector does not give back: threads and file descriptors."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["LeakError", "ResourceWatch"]


class LeakError(AssertionError):
    """A piece of code left threads, file descriptors or files behind."""


class ResourceWatch:
    """Checks that a ``with`` block leaves no thread, no open file descriptor and no file behind.

    Linux only. Nothing else may open or close files in the process meanwhile.
    """

    def __init__(self, *directories: str | os.PathLike[str]) -> None:
        """Watch the process and, in addition, the names in ``directories``."""
        self._directories = [Path(directory) for directory in directories]

    def __enter__(self) -> ResourceWatch:
        self._threads = set(threading.enumerate())
        self._descriptors = _open_descriptors()
        self._names = self._list_names()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Compare with the start, unless the block itself failed.

        Raises:
            LeakError: something is left; the message lists it.
        """
        if error is None:
            self.check()

    def check(self) -> None:
        """Compare with the start; errors as `__exit__`."""
        gc.collect()
        left = [f"thread {thread.name!r}" for thread in threading.enumerate() if thread not in self._threads]
        left += [
            f"file descriptor {number} ({target})"
            for number, target in _open_descriptors().items()
            if self._descriptors.get(number) != target
        ]
        left += [f"file {name}" for name in sorted(self._list_names() - self._names)]
        if left:
            raise LeakError("left behind: " + ", ".join(left))

    def _list_names(self) -> set[str]:
        return {str(path) for directory in self._directories for path in directory.rglob("*")}


def _open_descriptors() -> dict[int, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the descriptor that listed the directory
    return found
