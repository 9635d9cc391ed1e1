"""Bytes of another model, layout or engine set-up in the same place are never a hit."""

from __future__ import annotations

import asyncio

import pytest
from object_harness import Place, keys_of, load, namespace, store


@pytest.mark.parametrize("place", ["file", "obstore-seaweedfs"], indirect=True)
def test_another_namespace_never_hits(place: Place) -> None:
    fields = [
        {"model_name": "other"},
        {"model_revision": "r2"},
        {"weights_digest": "ab"},
        {"kv_dtype": "fp8"},
        {"kv_layout": "HND"},
        {"tokens_per_chunk": (32,)},
        {"group_page_bytes": ((4096,),)},
        {"block_size_factor": 2},
        {"world_size": 2},
        {"parallel_layout": "tp2pp1cp1"},
        {"hash_scheme": "sha256"},
        {"extra": {"rank": "1"}},
        {"format_version": 2},
    ]

    async def scenario() -> None:
        async with place.opened() as tier:
            await store(tier, 1)
            for different in fields:
                async with place.opened(name_space=namespace(**different)) as other:
                    assert await other.lookup(keys_of(1)) == [False]
                    assert await load(other, 1) == [False]
                explained = place.read(f"{namespace(**different).fingerprint.hex()}/namespace.json").decode()
                assert len(namespace().differences(explained)) == 1
            assert await load(tier, 1) == [True]
        assert len([name for name in place.names() if name.endswith("namespace.json")]) == 1 + len(fields)

    asyncio.run(scenario())
