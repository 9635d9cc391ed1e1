"""Several ranks as real processes over one region: hybrid groups with unequal pages, and ranks with equal KV."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from rank_member import FACTOR, GROUPS, INDICES, NUM_ROWS, PAGES, ROWS, SIZES, block_bytes, open_region

from tiering.device import StoreTurns

COLUMN = sum(PAGES) * FACTOR

TRANSFER_BYTES = sum(size * sum(used for _, used in group) for size, group in zip(SIZES, GROUPS, strict=True))


@pytest.fixture
def directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tiering-test-") as name:
        yield name


def row_model(num_columns: int) -> np.ndarray:
    """All rows as they must be after the store, walked block by block."""
    row_bytes = -(-num_columns * COLUMN // 4096) * 4096
    rows = np.zeros((NUM_ROWS, row_bytes), dtype=np.int8)
    for column in range(num_columns):
        first_row = 0
        for group, (refs, size, index) in enumerate(zip(GROUPS, SIZES, INDICES, strict=True)):
            for at in range(size):
                row, place = divmod(index % FACTOR + at, FACTOR)
                for tensor, used in refs:
                    begin = column * COLUMN + sum(PAGES[:tensor]) * FACTOR + place * PAGES[tensor]
                    content = block_bytes(column, group, at, tensor, used)
                    rows[ROWS[first_row + row], begin : begin + used] = content
            first_row += row + 1
    return rows


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
def test_four_ranks_with_three_groups(directory: str, num_replicas: int) -> None:
    num_columns = 4 // num_replicas
    scheduler = open_region(directory, None, num_columns, num_replicas)
    with ExitStack() as stack:
        ranks = []
        for rank in range(4):
            arguments = json.dumps([directory, rank, num_columns, num_replicas])
            command = [sys.executable, "-W", "error", str(Path(__file__).with_name("rank_member.py")), arguments]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            ranks.append(stack.enter_context(process))
            stack.callback(process.kill)
        moved = [int(rank.stdout.readline()) for rank in ranks]
        rows = np.frombuffer(scheduler.create_kv_memoryview(), dtype=np.int8)
        assert rows.tobytes() == row_model(num_columns).tobytes()
        # Each byte of a column was stored by exactly one of the ranks that share it.
        assert [sum(moved[n : n + num_replicas]) for n in range(0, 4, num_replicas)] == [TRANSFER_BYTES] * num_columns
        assert all(moved)
        assert [rank.communicate("go\n")[0] for rank in ranks] == ["0\n"] * 4
    scheduler.cleanup()
    assert list(Path(directory).iterdir()) == []


def test_every_row_is_one_replicas_turn() -> None:
    rows = np.random.default_rng(0).permutation(1000)
    turns = [StoreTurns(replica, 3).are_mine(rows) for replica in range(3)]
    assert (sum(turn.astype(int) for turn in turns) == 1).all()
    assert [int(turn.sum()) for turn in turns] == [334, 333, 333]
    for replica, num_replicas in [(3, 3), (-1, 3), (0, 0)]:
        with pytest.raises(ValueError, match=f"replica {replica} is outside"):
            StoreTurns(replica, num_replicas)
