"""The process in which a tier runs: how it is started, and how one is sure that it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys

from tiering.isolation.channel import Channel
from tiering.isolation.process_output import ProcessOutput
from tiering.tier import RunBlocking

__all__ = ["TierProcess"]

# No fork, which inherits locks, and not multiprocessing's spawn, which runs the engine's main module.
_PROGRAM = """\
import sys
sockets, rows, engine, name, *sys.path = sys.argv[1:]
from tiering.isolation.tier_host import main
main(int(sockets), int(rows), int(engine))
"""

_MAX_OUTPUT_BYTES = 2**17
"""More than a pipe holds."""


class TierProcess:
    """One life of a tier's process. Used on one event loop thread, on which its output is read, too.

    Attributes:
        pid: its process id.
        channel: leads to its `tiering.isolation.tier_host.TierHost`.
    """

    channel: Channel

    def __init__(
        self, popen: subprocess.Popen[bytes], output_fd: int, output: ProcessOutput, run_blocking: RunBlocking
    ) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._output_fd = output_fd
        self._output = output
        self._run_blocking = run_blocking

    @classmethod
    async def start(cls, name: str, rows_fd: int, output: ProcessOutput, run_blocking: RunBlocking) -> TierProcess:
        """Start a process that has the rows' file open.

        The kernel kills it when the calling thread ends, so that thread must live as long as the process may. It finds
        the same modules as this one. What it prints and logs goes to ``output``.

        Raises:
            OSError: it could not be started; nothing is left behind.
        """
        ours, theirs = socket.socketpair()
        output_fd, their_output_fd = os.pipe()
        try:
            arguments = [str(theirs.fileno()), str(rows_fd), str(os.getpid()), f"tier:{name}", *sys.path]
            popen = subprocess.Popen(  # noqa: ASYNC220  (this loop serves one tier, which does not run yet)
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=their_output_fd,
                stderr=their_output_fd,
                pass_fds=(theirs.fileno(), rows_fd),
            )
        except BaseException:
            ours.close()
            os.close(output_fd)
            raise
        finally:
            theirs.close()
            os.close(their_output_fd)
        process = cls(popen, output_fd, output, run_blocking)
        try:
            process.channel = await Channel.over(ours)
        except BaseException:
            ours.close()
            os.close(output_fd)
            process.kill()
            process.wait()
            raise
        os.set_blocking(output_fd, False)
        asyncio.get_running_loop().add_reader(output_fd, process._read_output)
        return process

    def kill(self) -> None:
        """Have the kernel end it; does nothing if it has ended. From any thread."""
        self._popen.kill()

    def wait(self) -> int:
        """Block until it has ended; return its exit code, negative for a signal. From any thread."""
        return self._popen.wait()

    async def end(self, grace_seconds: float = 0.0) -> str:
        """Wait until the process is gone, killing it after ``grace_seconds``; return how it ended.

        Its channel is closed first. When this returns, nothing of it can write into a row any more, and what it has
        printed has been logged.
        """
        loop = asyncio.get_running_loop()
        kill = loop.call_later(grace_seconds, self.kill)
        self.channel.abort()
        try:
            code = await self._run_blocking(self.wait)
        finally:
            kill.cancel()
        self._read_output()  # not to its end, which whatever the process has started may put off for ever
        loop.remove_reader(self._output_fd)
        os.close(self._output_fd)
        self._output.end()
        return f"ended with {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _read_output(self) -> None:
        try:
            data = os.read(self._output_fd, _MAX_OUTPUT_BYTES)
        except BlockingIOError:
            return
        if data:
            self._output.take(data)
        else:
            asyncio.get_running_loop().remove_reader(self._output_fd)
