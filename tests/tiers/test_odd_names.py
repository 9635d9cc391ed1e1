"""Names of models that no file could have: they are part of the namespace, not of a path."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from disk_harness import Disk, blank_rows, bytes_of, keys_of, rows_for

LONG = "a/very/long/local/path/" * 20
NAMES = ["m" * 60, "m" * 200, "m" * 255, "m" * 400, LONG, "../../etc", "a b\tc", "模型-é", ".hidden", "", "nul\0byte"]


@pytest.mark.parametrize("name", NAMES)
def test_tc_40_chunks_of_a_model_with_an_odd_name_come_back(name: str, disk: Disk, tmp_path: Path) -> None:
    async def scenario() -> None:
        for is_first in (True, False):
            tier = disk.make(model_name=name)
            await tier.open()
            if is_first:
                assert await tier.store(keys_of(1, 2), rows_for(keys_of(1, 2))) == [True, True]
            rows = blank_rows(2)
            assert await tier.load(keys_of(1, 2), rows) == [True, True]
            assert [bytes(row) for row in rows] == [bytes_of(key) for key in keys_of(1, 2)]
            await tier.close()

    asyncio.run(scenario())
    assert [path.name for path in tmp_path.iterdir()] == ["root"], "nothing lies outside of the root"


def test_tc_40_names_with_a_common_beginning_share_nothing(disk: Disk) -> None:
    async def scenario() -> None:
        for ending in ("x", "y"):
            tier = disk.make(model_name="m" * 200 + ending)
            await tier.open()
            assert await tier.lookup(keys_of(1)) == [False]
            assert await tier.store(keys_of(1), rows_for(keys_of(1))) == [True]
            await tier.close()

    asyncio.run(scenario())
