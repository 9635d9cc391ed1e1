"""Rows from one process to another: through the shared region with a small message, against pickled bytes in a pipe."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection

import numpy as np
import xxhash

from benchmarks.comparison import Comparison, Scale, alternate, check
from tiering.keys import OffloadKey, make_offload_key
from tiering.region import RegionLayout, SharedOffloadRegion
from tiering.testing import key_pattern

__all__ = ["measure"]

_NUM_ROWS = 16
_ROW_SIZES = (256 * 2**10, 2**20, 4 * 2**20)


def measure(scale: Scale) -> Iterator[Comparison]:
    """Measure a round trip: rows are written, the other process has them, and says so."""
    for row_bytes in _ROW_SIZES:
        with _Producer(row_bytes) as producer:
            seconds = alternate(
                scale.rounds * 3,
                partial(producer.send, "pipe"),
                partial(producer.send, "in place"),
                partial(producer.send, "copied out"),
            )
        for case, measured in zip(("used in place", "copied out"), seconds[1:], strict=True):
            yield Comparison.per_byte(
                f"{_NUM_ROWS} rows of {row_bytes // 1024} KiB, {case}",
                "pickled through a pipe",
                _NUM_ROWS * row_bytes,
                measured,
                seconds[0],
            )


class _Producer:
    """Writes rows and tells a consumer process about them."""

    def __init__(self, row_bytes: int) -> None:
        layout = RegionLayout(_NUM_ROWS, 1, row_bytes)
        name = f"benchmark-{os.getpid()}-{row_bytes}"
        self._region = SharedOffloadRegion(name, layout.total_bytes, _NUM_ROWS, None, 1, row_bytes)
        self._rows = [np.frombuffer(row, np.uint8) for row in self._region.row_views(range(_NUM_ROWS))]
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._consumer = context.Process(target=_consume, args=(theirs, name, layout), daemon=True)
        self._consumer.start()
        theirs.close()
        self._connection.recv()
        self._region.unlink()
        self._round = 0

    def __enter__(self) -> _Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._consumer.join()
        self._rows.clear()
        self._region.cleanup()

    def send(self, way: str) -> float:
        """Return the seconds from the first byte to the answer."""
        self._round += 1
        sources = [key_pattern(_key(self._round, row), len(self._rows[0])) for row in range(_NUM_ROWS)]
        began = time.perf_counter()
        if way == "pipe":
            self._connection.send((way, [source.tobytes() for source in sources]))
        else:
            for row, source in zip(self._rows, sources, strict=True):
                row[:] = source
            self._connection.send((way, list(range(_NUM_ROWS))))
        self._connection.recv()
        seconds = time.perf_counter() - began
        self._connection.send(("digest", None))
        expected = [xxhash.xxh3_64_intdigest(source.data) for source in sources]
        check(self._connection.recv() == expected, f"the bytes that the other process has got: {way}")
        return seconds


def _key(round_number: int, row: int) -> OffloadKey:
    return make_offload_key(round_number.to_bytes(8, "big"), row)


def _consume(connection: Connection, name: str, layout: RegionLayout) -> None:
    region = SharedOffloadRegion(name, layout.total_bytes, layout.num_rows, 0, 1, layout.worker_page_bytes)
    rows = [np.frombuffer(row, np.uint8) for row in region.row_views(range(layout.num_rows))]
    own = [np.zeros_like(row) for row in rows]
    got: list[bytes] | list[memoryview] = []
    connection.send("ready")
    while True:
        try:
            way, content = connection.recv()
        except EOFError:
            return
        match way:
            case "digest":
                connection.send([xxhash.xxh3_64_intdigest(row) for row in got])
                continue
            case "pipe":
                got = content
            case "in place":
                got = [rows[row].data for row in content]
            case _:
                for row in content:
                    own[row][:] = rows[row]
                got = [array.data for array in own]
        connection.send("done")
