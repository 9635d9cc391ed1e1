"""Where the bytes of one object land: its header in a buffer of ours, its row in the row they are for."""

from __future__ import annotations

import numpy as np
import xxhash

from tiers.s3.errors import ObjectDamagedError
from tiers.s3.object_format import HEADER_BYTES

__all__ = ["Landing"]

_STEP_BYTES = 64 * 1024
"""What is copied and summed up at a time without giving the interpreter lock away: some 8 microseconds of work. Beside
a thread that is always busy, such as an engine that polls, it takes a millisecond to get the lock back."""


class Landing:
    """Takes an object piece by piece, in order, and refuses what is longer or shorter than header and row together.

    The row is summed up as it fills, while the processor still has the bytes at hand.

    Attributes:
        header: the object's first `HEADER_BYTES` bytes.
        row: memory for the rest.
        num_bytes: length of the whole object.
    """

    def __init__(self, row: memoryview) -> None:
        self.header = bytearray(HEADER_BYTES)
        self.row = row
        self.num_bytes = HEADER_BYTES + row.nbytes
        self._received = 0
        self._sum = xxhash.xxh3_64()
        self._held: memoryview | None = None

    @property
    def checksum(self) -> int:
        """The xxh3_64 of what has arrived in the row."""
        return self._sum.intdigest()

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing for `settle` to do."""
        return self._held is None

    def begin(self, num_bytes: int | None = None) -> None:
        """Start anew, with an object said to be ``num_bytes`` long; None where nobody knows.

        Raises:
            ObjectDamagedError: that is not the length of a chunk.
        """
        self._received = 0
        self._sum.reset()
        self._held = None
        if num_bytes is not None and num_bytes != self.num_bytes:
            raise ObjectDamagedError(f"it is {num_bytes} bytes long, not {self.num_bytes}")

    def rest(self) -> memoryview:
        """Return the memory that comes next; empty if nothing more is expected."""
        if self._received < HEADER_BYTES:
            return memoryview(self.header)[self._received :]
        return self.row[self._received - HEADER_BYTES :]

    def advance(self, num_bytes: int) -> None:
        """Note that the first ``num_bytes`` of `rest` were filled, and sum them up."""
        if self._received >= HEADER_BYTES:
            self._sum.update(self.rest()[:num_bytes])
        self._received += num_bytes

    def take(self, piece: bytes | memoryview) -> None:
        """Copy the next piece to its place; for the loop thread, and pieces as sockets give them.

        Raises:
            ObjectDamagedError: the object is too long. Nothing beyond the row was written.
        """
        source = memoryview(piece)
        while source:
            target = self.rest()
            count = min(len(source), len(target), _STEP_BYTES)
            if count == 0:
                raise ObjectDamagedError(f"it is longer than {self.num_bytes} bytes")
            target[:count] = source[:count]
            self.advance(count)
            source = source[count:]

    def hold(self, whole: bytes | memoryview) -> None:
        """Begin with a whole object, and keep it until `settle` copies it; so nothing has to be copied on the loop.

        Of an object that is longer, `num_bytes` and one more are enough.

        Raises:
            ObjectDamagedError: it has not the length of a chunk.
        """
        held = memoryview(whole)
        if held.nbytes > self.num_bytes:
            raise ObjectDamagedError(f"it is longer than {self.num_bytes} bytes")
        self.begin(held.nbytes)
        self._held = held

    def settle(self) -> None:
        """Copy and sum up what is held, if anything, without the interpreter lock; for a worker thread."""
        if self._held is not None:
            self.header[:] = self._held[:HEADER_BYTES]
            np.copyto(np.asarray(self.row), np.asarray(self._held[HEADER_BYTES:]))
            self.advance(HEADER_BYTES)
            self.advance(self.row.nbytes)
            self._held = None

    def end(self) -> None:
        """Note that the last piece was taken.

        Raises:
            ObjectDamagedError: some of the object is missing.
        """
        if self._received != self.num_bytes:
            raise ObjectDamagedError(f"it is {self._received} bytes long, not {self.num_bytes}")
