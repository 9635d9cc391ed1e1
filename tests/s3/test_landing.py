"""Bytes come to their place and are summed up, however they are cut into pieces."""

from __future__ import annotations

import random

import pytest
import xxhash

from tiers.s3.errors import ObjectDamagedError
from tiers.s3.landing import Landing
from tiers.s3.object_format import HEADER_BYTES

ROW_BYTES = 300_000
OBJECT = random.Random(1).randbytes(HEADER_BYTES + ROW_BYTES)
SIZES = [1, 255, 256, 257, 65_536, 65_537, 250_000, HEADER_BYTES + ROW_BYTES]


def read(landing: Landing, data: bytes, size: int) -> None:
    landing.begin()
    for start in range(0, len(data), size):
        landing.take(data[start : start + size])
    landing.end()


def assert_landed(landing: Landing) -> None:
    assert landing.is_settled
    assert bytes(landing.header) == OBJECT[:HEADER_BYTES]
    assert bytes(landing.row) == OBJECT[HEADER_BYTES:]
    assert landing.checksum == xxhash.xxh3_64_intdigest(OBJECT[HEADER_BYTES:])


@pytest.mark.parametrize("size", SIZES)
def test_pieces_of_any_size(size: int) -> None:
    landing = Landing(memoryview(bytearray(ROW_BYTES)))
    for _ in range(2):  # a second reading owes nothing to the first
        read(landing, OBJECT, size)
        assert_landed(landing)


def test_a_reading_that_broke_off_is_forgotten() -> None:
    landing = Landing(memoryview(bytearray(ROW_BYTES)))
    with pytest.raises(ObjectDamagedError, match="5000 bytes long"):
        read(landing, b"\xff" * 5000, 5000)
    read(landing, OBJECT, len(OBJECT))
    assert_landed(landing)


def test_a_whole_object_is_kept_until_it_is_settled() -> None:
    landing = Landing(memoryview(bytearray(ROW_BYTES)))
    landing.hold(OBJECT)
    assert not landing.is_settled
    assert landing.row == bytes(ROW_BYTES)
    landing.settle()
    assert_landed(landing)
    landing.settle()
    assert_landed(landing)


@pytest.mark.parametrize("num_bytes", [0, 100, HEADER_BYTES, len(OBJECT) - 1, len(OBJECT) + 1])
def test_objects_of_another_length_are_refused(num_bytes: int) -> None:
    memory = bytearray(ROW_BYTES + 8)
    landing = Landing(memoryview(memory)[:ROW_BYTES])
    other = (OBJECT + b"\xff")[:num_bytes]
    with pytest.raises(ObjectDamagedError, match="long"):
        landing.hold(other)
    assert landing.is_settled
    with pytest.raises(ObjectDamagedError, match="long"):
        read(landing, other, 100_000)
    assert memory[ROW_BYTES:] == bytes(8)


def test_a_row_without_bytes() -> None:
    landing = Landing(memoryview(bytearray()))
    landing.hold(OBJECT[:HEADER_BYTES])
    landing.settle()
    assert bytes(landing.header) == OBJECT[:HEADER_BYTES]
    assert landing.checksum == xxhash.xxh3_64_intdigest(b"")
