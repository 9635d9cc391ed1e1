from __future__ import annotations

import numpy as np
import pytest
import torch

from tiering.device import compute_sub_block_ptrs


def pointers(tensor: torch.Tensor, ids: list[int], factor: int, count: int, skip: int) -> list[int]:
    output = np.full(count, -1, dtype=np.int64)
    compute_sub_block_ptrs(np.array(ids, dtype=np.int64), factor, output, tensor, skip)
    return (output - tensor.data_ptr()).tolist()


def test_the_seeds_example() -> None:
    tensor = torch.zeros((3, 32), dtype=torch.int8)
    assert pointers(tensor, [0, 1, 2], 2, 4, 1) == [16, 32, 48, 64]


def test_rows_lie_apart_by_stride() -> None:
    rows = torch.zeros((10, 100), dtype=torch.int8)[:, 20:44]
    assert pointers(rows, [7, 2], 1, 2, 0) == [700, 200]
    assert pointers(rows, [7, 2], 4, 5, 3) == [718, 200, 206, 212, 218]
    assert pointers(rows, [], 4, 0, 0) == []


@pytest.mark.parametrize(
    ("factor", "count", "skip", "message"),
    [
        (5, 1, 0, "24 bytes cannot be divided into 5"),
        (4, 1, 4, r"skip count 4 is outside 0\.\.3"),
        (4, 1, -1, "skip count -1"),
        (4, 6, 3, "2 blocks of 4 do not hold 6 after skipping 3"),
    ],
)
def test_wrong_input_leaves_the_output_untouched(factor: int, count: int, skip: int, message: str) -> None:
    output = np.full(count, -1, dtype=np.int64)
    with pytest.raises(ValueError, match=message):
        compute_sub_block_ptrs(np.array([1, 2]), factor, output, torch.zeros((4, 24), dtype=torch.int8), skip)
    assert (output == -1).all()


def test_nothing_is_asked_of_no_rows() -> None:
    assert pointers(torch.zeros((3, 32), dtype=torch.int8), [], 2, 0, 1) == []
