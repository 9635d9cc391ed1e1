from __future__ import annotations

import random
from itertools import pairwise, product

import numpy as np
import pytest

from tiering.errors import ConfigError
from tiering.region import RegionLayout

CASES = list(product([1, 2, 4], ([4096], [1000], [65536, 32768, 4096], [4097, 1, 12345])))
"""Ranks, and the page sizes of one rank's tensors."""


def row_bytes_by_hand(num_workers: int, pages: list[int]) -> int:
    row_bytes = 0
    while row_bytes < num_workers * sum(pages):
        row_bytes += 4096
    return row_bytes


@pytest.mark.parametrize(("num_workers", "pages"), CASES)
def test_tc_64_budget_holds_as_many_rows_as_fit(num_workers: int, pages: list[int]) -> None:
    row = row_bytes_by_hand(num_workers, pages)
    for budget, num_rows in [(row, 1), (2 * row - 1, 1), (10 * row + 7, 10)]:
        layout = RegionLayout.from_budget(budget, sum(pages), num_workers)
        assert (layout.num_rows, layout.row_bytes, layout.total_bytes) == (num_rows, row, num_rows * row)
        assert budget - row < layout.total_bytes <= budget


@pytest.mark.parametrize(("num_workers", "pages"), CASES)
def test_tc_64_less_than_one_row_is_a_configuration_error(num_workers: int, pages: list[int]) -> None:
    row = row_bytes_by_hand(num_workers, pages)
    for budget in (0, 1, row - 1):
        with pytest.raises(ConfigError, match=rf"cpu_bytes_to_use: {budget} bytes .* one row of {row} bytes"):
            RegionLayout.from_budget(budget, sum(pages), num_workers)


@pytest.mark.parametrize(("num_workers", "pages"), CASES)
def test_tc_64_last_byte_of_the_last_slot_alters_nothing_else(open_region, num_workers: int, pages: list[int]) -> None:
    layout = RegionLayout(3, num_workers, sum(pages))
    scheduler = open_region(layout)
    for rank in range(num_workers):
        worker = open_region(layout, rank)
        views = [worker.create_next_view(page) for page in pages]
        rows = np.frombuffer(worker.create_kv_memoryview(), dtype=np.uint8)
        rows[:] = 0xAA
        header = scheduler.mmap_path.read_bytes()[layout.total_bytes :]
        views[-1][-1, -1] = 0x55
        expected = bytearray(b"\xaa" * layout.total_bytes)
        expected[2 * layout.row_bytes + (rank + 1) * sum(pages) - 1] = 0x55
        assert scheduler.mmap_path.read_bytes() == bytes(expected) + header
        with pytest.raises(ValueError, match=r"0 of .* bytes of the column are left"):
            worker.create_next_view(1)


def test_column_pages_are_exactly_the_pages_of_the_column() -> None:
    choose = random.Random(1)
    for _ in range(300):
        layout = RegionLayout(choose.randint(1, 9), choose.randint(1, 5), choose.randint(1, 20_000))
        rank = choose.randrange(layout.num_workers)
        page_bytes = choose.choice([4096, 16384, 65536])
        expected = set()
        for row in range(layout.num_rows):
            first = row * layout.row_bytes + rank * layout.worker_page_bytes
            expected.update(range(first // page_bytes, (first + layout.worker_page_bytes - 1) // page_bytes + 1))
        ranges = list(layout.column_pages(rank, page_bytes))
        pages = [
            page
            for offset, length in ranges
            for page in range(offset // page_bytes, -(-(offset + length) // page_bytes))
        ]
        assert pages == sorted(expected)
        assert all(offset % page_bytes == 0 for offset, _ in ranges)
        assert all(a + b < c for (a, b), (c, _) in pairwise(ranges))
        assert sum(ranges[-1]) <= layout.total_bytes


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_a_layout_without_bytes_is_refused(shape: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        RegionLayout(*shape)
