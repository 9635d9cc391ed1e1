"""Engines of different set-ups, and models of odd names, over the same directory."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace

import pytest
from disk_harness import Disk, present

from tiering.naming import Namespace

BASE = Namespace(
    model_name="model",
    row_bytes=8192,
    model_revision="main",
    weights_digest="a1",
    kv_dtype="bfloat16",
    kv_layout="NHD",
    tokens_per_chunk=(16,),
    group_page_bytes=((4096,),),
    block_size_factor=1,
    world_size=2,
    parallel_layout="tp2pp1cp1",
    hash_scheme="sha256",
)
OTHERS: dict[str, object] = {
    "model_name": "model-2",
    "row_bytes": 16384,
    "model_revision": "v2",
    "weights_digest": "b2",
    "kv_dtype": "fp8_e4m3",
    "kv_layout": "HND",
    "tokens_per_chunk": (32,),
    "group_page_bytes": ((4096,), (8192,)),
    "block_size_factor": 2,
    "world_size": 4,
    "parallel_layout": "tp1pp2cp1",
    "hash_scheme": "sha256_cbor",
    "extra": {"rank": "1"},
    "format_version": 2,
}


def test_tc_43_the_table_names_every_field() -> None:
    assert OTHERS.keys() == {field.name for field in fields(Namespace)}


@pytest.mark.parametrize("name", OTHERS)
def test_tc_43_one_field_that_differs_is_a_miss(disk: Disk, name: str) -> None:
    """A stores, B finds nothing and stores the same keys, and A finds its own bytes as before."""
    other = replace(BASE, **{name: OTHERS[name]})

    async def scenario() -> None:
        async with disk.opened(ours=BASE) as tier:
            assert all(await disk.store(tier, *range(6)))
        others_disk = Disk(disk.root, other.row_bytes)
        async with others_disk.opened(ours=other) as tier:
            assert await present(tier) == []
            assert not any(await others_disk.load(tier, *range(6)))
            assert all(await others_disk.store(tier, *range(8)))
        for path in (disk.root / BASE.fingerprint.hex()).glob("index.*"):
            path.unlink()
        for _ in ("from the headers", "from the index"):
            async with disk.opened(ours=BASE) as tier:
                assert sorted(await present(tier)) == list(range(6))
                assert all(await disk.load(tier, *range(6)))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "name",
    [
        *("m" * length for length in (1, 60, 200, 255, 400)),
        "/models/../../../etc/passwd",
        "..",
        ".hidden",
        "two words\nand a line",
        "モデル-ü",
        "a\0b",
    ],
)
def test_tc_40_any_model_name(disk: Disk, name: str) -> None:
    """Nothing is made outside of the root; what was stored is found again."""
    ours = replace(BASE, model_name=name, extra={"group": name * 2})
    sibling = replace(BASE, model_name=name + "-2")

    async def scenario() -> None:
        async with disk.opened(ours=ours) as tier:
            assert all(await disk.store(tier, *range(6)))
        async with disk.opened(ours=sibling) as tier:
            assert await present(tier) == []
        async with disk.opened(ours=ours) as tier:
            assert all(await disk.load(tier, *range(6)))

    asyncio.run(scenario())
    assert {path.name for path in disk.root.iterdir()} == {ours.fingerprint.hex(), sibling.fingerprint.hex()}
    assert [path.name for path in disk.root.parent.iterdir()] == [disk.root.name]
