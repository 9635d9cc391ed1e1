"""Rules about what a tier may offer beyond the three coroutines."""

from __future__ import annotations

import unittest

from tiering.testing.tier_rules.session import Ability, TierSession, TierUnderTest, chunk, chunks, rule
from tiering.tier import KnowsKeys, TracksRecency

__all__ = ["AbilityRules"]


class AbilityRules(TierUnderTest):
    """Where a tier says that it can do something, it does it."""

    @rule(Ability.EVICTS, bounded=True)
    async def test_a_bound_is_kept(self, tier: TierSession) -> None:
        keys = chunks(*range(3 * self.max_chunks))
        for key in keys:
            await tier.store([key])
        found = await tier.lookup(keys)
        assert 0 < sum(found) <= self.max_chunks
        await tier.must_load([key for key, is_there in zip(keys, found, strict=True) if is_there])
        usage = await tier.tier.usage()
        assert usage.capacity_bytes is not None, "a tier that evicts has a capacity"
        assert usage.used_bytes <= usage.capacity_bytes

    @rule(Ability.EVICTS, bounded=True)
    async def test_what_was_evicted_is_reported(self, tier: TierSession) -> None:
        """Routers send requests to where they were told that a chunk is."""
        keys = chunks(*range(3 * self.max_chunks))
        accepted = [key for key in keys if (await tier.store([key]))[0]]
        found = await tier.lookup(accepted)
        gone = [key for key, is_there in zip(accepted, found, strict=True) if not is_there]
        assert sorted(tier.evicted) == sorted(gone)

    @rule(Ability.EVICTS, bounded=True)
    async def test_a_chunk_is_gone_before_it_is_reported(self, tier: TierSession) -> None:
        for number in range(2 * self.max_chunks):
            await tier.store(chunks(number))
        assert not tier.present_when_reported

    @rule(Ability.EVICTS, Ability.FOLLOWS_RECENCY, bounded=True)
    async def test_a_touched_chunk_stays(self, tier: TierSession) -> None:
        keys = chunks(*range(self.max_chunks))
        for key in keys:
            await tier.must_store([key])
        assert isinstance(tier.tier, TracksRecency)
        tier.tier.touch([keys[0]])
        await tier.store(chunks(100))
        assert (await tier.lookup([keys[0]])) == [True]

    @rule()
    async def test_touch_takes_unknown_chunks_and_none(self, tier: TierSession) -> None:
        if not isinstance(tier.tier, TracksRecency):
            raise unittest.SkipTest("the tier does not track recency")
        await tier.must_store(chunks(1))
        tier.tier.touch([])
        tier.tier.touch(chunks(8, 1, 9))
        assert await tier.lookup(chunks(8, 9)) == [False, False]
        await tier.must_load(chunks(1))

    @rule()
    async def test_contains_says_what_lookup_says(self, tier: TierSession) -> None:
        if not isinstance(tier.tier, KnowsKeys):
            raise unittest.SkipTest("the tier does not know its keys")
        assert tier.tier.contains(chunk(1)) is False
        await tier.must_store(chunks(1, 3))
        await tier.load(chunks(1, 2))
        keys = chunks(1, 2, 3, 4)
        assert [tier.tier.contains(key) for key in keys] == await tier.lookup(keys) == [True, False, True, False]

    @rule()
    async def test_usage_is_what_is_there(self, tier: TierSession) -> None:
        before = await tier.tier.usage()
        await tier.must_store(chunks(1, 2, 3))
        after = await tier.tier.usage()
        assert after.used_bytes >= before.used_bytes >= 0
        if before.num_chunks is not None:
            assert (before.num_chunks, after.num_chunks) == (0, 3)
        if after.capacity_bytes is not None:
            assert after.used_bytes <= after.capacity_bytes

    @rule(Ability.DELETES)
    async def test_a_deleted_chunk_is_gone(self, tier: TierSession) -> None:
        await tier.must_store(chunks(1, 2, 3))
        await tier.tier.delete(chunks(1, 3))
        assert await tier.lookup(chunks(1, 2, 3)) == [False, True, False]
        assert await tier.load(chunks(1)) == [False]
        await tier.must_load(chunks(2))
        await tier.must_store(chunks(1))
        await tier.must_load(chunks(1))

    @rule(Ability.DELETES)
    async def test_deleting_takes_unknown_chunks_and_none(self, tier: TierSession) -> None:
        await tier.must_store(chunks(1, 2))
        await tier.tier.delete([])
        await tier.tier.delete(chunks(7, 8))
        await tier.must_load(chunks(1, 2))

    @rule(Ability.LISTS)
    async def test_keys_are_listed_once_each(self, tier: TierSession) -> None:
        keys = [*chunks(1, 2, 3), chunk(1, 5)]
        await tier.must_store(keys)
        await tier.must_store(chunks(1, 2))
        assert sorted([key async for key in tier.tier.keys()]) == sorted(keys)  # noqa: SIM118  (a tier is no mapping)
