"""What holds for every client and every store."""

from __future__ import annotations

import asyncio

import pytest
from object_harness import EVERYWHERE, Clock, Place, blank_rows, key_of, keys_of, load, namespace, rows_for, store

from tiering.keys import OffloadKey
from tiers.s3.object_format import HEADER_BYTES, MAX_KEY_BYTES

pytestmark = pytest.mark.parametrize("place", EVERYWHERE, indirect=True)


def test_store_look_up_and_load(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened() as tier:
            assert await tier.lookup(keys_of(1, 2)) == [False, False]
            assert await store(tier, 1, 2, 3) == [True, True, True]
            assert await tier.lookup(keys_of(9, 2, 1)) == [False, True, True]
            assert await load(tier, 3, 9, 1) == [True, False, True]
            assert await tier.lookup([key_of(1, group=1)]) == [False]
            assert await tier.lookup([]) == await tier.store([], []) == await tier.load([], []) == []
            assert await store(tier, 1) == [True]
        assert len(place.chunks()) == 3

    asyncio.run(scenario())


def test_another_engine_finds_what_one_has_stored(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened() as one, place.opened() as other:
            await store(one, *range(20))
            assert await other.lookup(keys_of(*range(21))) == [True] * 20 + [False]
            assert await load(other, *range(21)) == [True] * 20 + [False]
        async with place.opened(list_on_start=True) as later:
            assert "20 chunks listed" in later.describe()
            assert await later.lookup(keys_of(0, 19)) == [True, True]
            assert later.counters.questions == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("row_bytes", [0, 1, 8192, 3 * 2**20 + 5])
def test_every_row_size(place: Place, row_bytes: int) -> None:
    async def scenario() -> None:
        async with place.opened(name_space=namespace(row_bytes)) as tier:
            assert await store(tier, 1, 2) == [True, True]
            assert await load(tier, 2, 1) == [True, True]
            assert await tier.lookup(keys_of(1, 3)) == [True, False]
        assert {len(place.read(name)) for name in place.chunks()} == {HEADER_BYTES + row_bytes}

    asyncio.run(scenario())


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES + 8191, HEADER_BYTES + 8193, HEADER_BYTES + 2 * 8192])
def test_an_object_of_the_wrong_length_is_never_a_hit(place: Place, length: int) -> None:
    async def scenario() -> None:
        async with place.opened() as tier:
            await store(tier, 1, 2)
            name = place.chunk(1)
            content = place.read(name)
            place.write(name, (content * 3)[:length])
            async with place.opened() as other:
                assert await load(other, 1, 2) == [False, True]
                assert other.counters.corrupt == 1
                assert await other.lookup(keys_of(1)) == [False]
                assert await store(other, 1) == [True]
                assert await other.lookup(keys_of(1)) == [True]
                assert await load(other, 1) == [True]
        assert place.read(name) == content

    asyncio.run(scenario())


@pytest.mark.parametrize("at", [0, 8, 20, 60, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 8191])
def test_a_flipped_byte_is_never_a_hit(place: Place, at: int) -> None:
    async def scenario() -> None:
        async with place.opened() as tier:
            await store(tier, 1, 2)
            name = place.chunk(1)
            content = bytearray(place.read(name))
            content[at] ^= 1
            place.write(name, bytes(content))
            assert await load(tier, 1, 2) == [False, True]
            assert tier.counters.corrupt == 1
            # Only what is provably ours is removed; anything else stays, and is not promised again.
            assert (name in place.chunks()) == (at < HEADER_BYTES)
            assert await tier.lookup(keys_of(1)) == [False]
            assert await store(tier, 1) == [True]
            assert await tier.lookup(keys_of(1)) == [True]
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


def test_an_object_under_the_name_of_another_is_never_a_hit(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened() as tier:
            await store(tier, 1, 2)
            one = place.chunk(1)
            place.write(one, place.read(place.chunk(2)))
            assert await load(tier, 1, 2) == [False, True]
            assert one in place.chunks()

    asyncio.run(scenario())


def test_deleted_or_expired_elsewhere(place: Place) -> None:
    evicted: list[OffloadKey] = []

    async def scenario() -> None:
        async with place.opened() as one, place.opened(evicted=evicted) as other:
            await store(one, 1, 2, 3)
            assert await other.lookup(keys_of(1, 2, 3)) == [True] * 3
            await one.delete(keys_of(1, 2, 77))
            assert await one.lookup(keys_of(1, 2, 3)) == [False, False, True]
            assert await load(other, 1, 2, 3) == [False, False, True]
            assert other.counters.vanished == 2
            assert sorted(evicted) == keys_of(1, 2)
            assert await other.lookup(keys_of(1, 2, 3)) == [False, False, True]
            assert await store(one, 1) == [True]
            assert await load(other, 1) == [True]

    asyncio.run(scenario())


def test_absence_is_forgotten_in_time_and_presence_too(place: Place) -> None:
    clock = Clock()

    async def scenario() -> None:
        verdicts = {"negative_ttl": "5s", "positive_ttl": "30s"}
        async with place.opened() as writer, place.opened(clock=clock, verdicts=verdicts) as reader:
            assert await reader.lookup(keys_of(1)) == [False]
            await store(writer, 1)
            assert await reader.lookup(keys_of(1)) == [False]
            clock.now += 5
            assert await reader.lookup(keys_of(1)) == [True]
            await writer.delete(keys_of(1))
            assert await reader.lookup(keys_of(1)) == [True]
            clock.now += 30
            assert await reader.lookup(keys_of(1)) == [False]
        async with place.opened() as writer, place.opened() as reader:
            assert await reader.lookup(keys_of(2)) == [False]
            await store(writer, 2)
            assert await reader.lookup(keys_of(2)) == [True]

    asyncio.run(scenario())


def test_keys_are_those_of_the_namespace_alone(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened() as tier, place.opened(name_space=namespace(model_name="other")) as other:
            await store(tier, *range(5))
            await store(other, 7)
            directory = place.chunks()[0].rpartition("/")[0]
            place.write(f"{directory}/not-a-key", b"x" * (HEADER_BYTES + 8192))
            assert sorted([key async for key in tier.keys()]) == keys_of(*range(5))  # noqa: SIM118

    asyncio.run(scenario())


def test_a_key_too_long_for_a_name_is_declined(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened() as tier:
            keys = [OffloadKey(bytes(MAX_KEY_BYTES)), OffloadKey(bytes(MAX_KEY_BYTES + 1))]
            assert await tier.store(keys, rows_for(keys)) == [True, False]
            assert await tier.load(keys, blank_rows(2)) == [True, False]
            assert await tier.lookup(keys) == [True, False]

    asyncio.run(scenario())


def test_many_calls_at_once(place: Place) -> None:
    async def scenario() -> None:
        async with place.opened(limits={"transfers": 4, "questions": 3}) as tier:

            async def client(seed: int) -> None:
                numbers = [(seed * 3 + offset) % 17 for offset in range(6)]
                assert all(await store(tier, *numbers))
                assert all(await load(tier, *reversed(numbers)))
                assert all(await tier.lookup(keys_of(*numbers)))

            await asyncio.gather(*map(client, range(6)))
        assert len(place.chunks()) == 17

    asyncio.run(scenario())
