"""What enters, what stays and for how long: eviction, ttl, admission, the write budget, order over roots."""

from __future__ import annotations

import asyncio

import pytest
from disk_harness import Disk, key_of, keys_of, present
from faulty_calls import FailingPlaces

from tiers.disk.admission import SecondOffer, WriteBudget


def test_fifo_gives_what_was_used_since_another_round(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(4, eviction="fifo") as tier:
            for number in (1, 2, 3, 4):
                await disk.store(tier, number)
            await disk.load(tier, 1)
            tier.touch([key_of(3)])
            assert await present(tier) == [1, 2, 3, 4], "a use alone moves nothing"
            await disk.store(tier, 5)
            assert disk.evicted == keys_of(2)
            assert await present(tier) == [3, 4, 1, 5]
            await disk.store(tier, 6, 7)
            assert disk.evicted == keys_of(2, 4, 1), "a use buys one round"
            assert set(await present(tier)) == {3, 5, 6, 7}

    asyncio.run(scenario())


def test_fifo_evicts_also_where_everything_was_used(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(3, eviction="fifo") as tier:
            for number in (1, 2, 3):
                await disk.store(tier, number)
            await disk.load(tier, 3, 2, 1)
            assert await disk.store(tier, 4) == [True]
            assert disk.evicted == keys_of(1)
            await tier.delete(keys_of(2))
            await disk.store(tier, 2)
            await disk.store(tier, 5, 6)
            assert set(await present(tier)) == {2, 5, 6}, "no use is remembered of a chunk that was gone"

    asyncio.run(scenario())


def test_recency_over_several_roots_survives_a_restart(disk: Disk) -> None:
    settings = {"root_dirs": [disk.root / name for name in "abc"]}

    async def scenario() -> None:
        async with disk.opened(30, **settings) as tier:
            await disk.store(tier, *range(20))
            await disk.load(tier, 3, 14, 7)
            await disk.store(tier, 20, 21)
            order = await present(tier)
        for _ in range(2):
            async with disk.opened(30, **settings) as tier:
                assert await present(tier) == order

    asyncio.run(scenario())


def test_chunks_end_after_their_time_to_live(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(8, ttl="60s") as tier:
            await disk.store(tier, 1, 2)
            disk.clock.now = 30
            await disk.store(tier, 3)
            await disk.load(tier, 1)
            disk.clock.now = 59
            assert await disk.load(tier, 1, 2, 3) == [True] * 3
            disk.clock.now = 60
            assert await tier.lookup(keys_of(1, 2, 3)) == [False, False, True], "a use makes nothing younger"
            assert sorted(disk.evicted) == keys_of(1, 2)
            assert tier.counters.expired == 2
            await disk.store(tier, 1)
            disk.clock.now = 100
            assert await disk.load(tier, 1, 2, 3) == [True, False, False]

    asyncio.run(scenario())


def test_time_to_live_goes_on_over_a_restart_and_a_jumping_clock(disk: Disk) -> None:
    disk.system = system = FailingPlaces()

    async def reopened_after(seconds: int) -> list[int]:
        system.now += seconds * 10**6
        async with disk.opened(8, ttl="60s") as tier:
            await tier.lookup([])
            return await present(tier)

    async def scenario() -> None:
        async with disk.opened(8, ttl="60s") as tier:
            await disk.store(tier, 1)
            system.now += 40 * 10**6
            await disk.store(tier, 2)
        assert await reopened_after(15) == [1, 2]
        assert await reopened_after(10) == [2]
        assert await reopened_after(-10_000) == [2], "what comes from the future is new"
        assert await reopened_after(20_000) == []

    asyncio.run(scenario())


def test_a_second_offer_is_stored(disk: Disk) -> None:
    async def scenario() -> None:
        async with disk.opened(8, admission="second_offer") as tier:
            assert await disk.store(tier, 1, 2) == [False, False]
            assert await disk.store(tier, 2, 3) == [True, False]
            assert await disk.store(tier, 2, 1) == [True, True]
            assert tier.counters.not_admitted == 3
            assert await disk.load(tier, 1, 2, 3) == [True, True, False]

    asyncio.run(scenario())


def test_offers_are_forgotten_before_they_take_all_memory() -> None:
    offers = SecondOffer(max_keys=2)
    assert [offers.admits(key) for key in keys_of(1, 2, 3)] == [False] * 3
    assert offers.admits(key_of(1)) is False, "forgotten for the third"
    assert offers.admits(key_of(3)) is True


def test_the_write_budget_is_kept(disk: Disk) -> None:
    slots_per_day = 48

    async def scenario() -> None:
        async with disk.opened(8, write_budget=slots_per_day * disk.slot_bytes) as tier:
            assert await disk.store(tier, 1, 2, 3) == [True, True, False]
            assert await disk.store(tier, 1) == [True], "what is here costs nothing"
            assert tier.counters.over_budget == 1
            disk.clock.now += 86400 / slots_per_day
            assert await disk.store(tier, 3, 4) == [True, False]
            assert tier.counters.written_bytes == 3 * disk.slot_bytes
            written = 3
            for number in range(100):
                disk.clock.now += 86400 / 50
                written += (await disk.store(tier, number + 100)).count(True)
            assert written - 3 == pytest.approx(100 * slots_per_day / 50, abs=2)

    asyncio.run(scenario())


def test_a_budget_below_a_chunk_an_hour_still_lets_one_through() -> None:
    now = 0.0
    budget = WriteBudget(bytes_per_day=100, chunk_bytes=100, clock=lambda: now)
    assert (budget.take(5), budget.take(5)) == (1, 0)
    budget.give_back(1)
    assert budget.take(5) == 1
    now = 86400 * 10.0
    assert budget.take(5) == 1
