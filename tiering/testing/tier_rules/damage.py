"""Rules about storage that does not keep what it was given."""

from __future__ import annotations

from tiering.testing.patterns import key_pattern
from tiering.testing.tier_rules.session import Ability, TierSession, TierUnderTest, chunk, chunks, rule

__all__ = ["DamageRules"]


class DamageRules(TierUnderTest):
    """Damage costs the damaged chunk, for as long as nobody stores it again."""

    @rule(Ability.ANY_LENGTH)
    async def test_an_object_of_the_wrong_length_is_a_miss(self, tier: TierSession) -> None:
        lengths = (0, self.row_bytes - 1, self.row_bytes + 1, 2 * self.row_bytes)
        keys = chunks(*range(len(lengths)))
        await tier.must_store([*keys, chunk(9)])
        for key, length in zip(keys, lengths, strict=True):
            self.write_object(tier.tier, key, key_pattern(key, length).tobytes())
        for key in keys:
            assert await tier.load([key]) == [False]
        await tier.must_load(chunks(9))

    @rule(Ability.VERIFIES)
    async def test_a_flipped_bit_is_a_miss(self, tier: TierSession) -> None:
        places = (0, 1, self.row_bytes // 2, self.row_bytes - 1)
        keys = chunks(*range(len(places)))
        await tier.must_store([*keys, chunk(9)])
        for key, place in zip(keys, places, strict=True):
            payload = bytearray(key_pattern(key, self.row_bytes).tobytes())
            payload[place] ^= 1 << place % 8
            self.write_object(tier.tier, key, bytes(payload))
        for key in keys:
            assert await tier.load([key]) == [False]
        await tier.must_load(chunks(9))

    @rule(Ability.VERIFIES)
    async def test_a_corrupt_chunk_is_reported(self, tier: TierSession) -> None:
        """Many of them and the core leaves the tier alone: its storage fails."""
        keys = chunks(1, 2, 3)
        await tier.must_store(keys)
        self.write_object(tier.tier, keys[1], bytes(self.row_bytes))
        await tier.load(keys)
        assert tier.corrupt == [keys[1]]

    @rule()
    async def test_one_lost_object_costs_no_other(self, tier: TierSession) -> None:
        """In one batch: first, in the middle, last."""
        for lost, first in ((0, 10), (2, 20), (4, 30)):
            keys = chunks(*range(first, first + 5))
            await tier.must_store(keys)
            self.remove_object(tier.tier, keys[lost])
            assert await tier.load(keys) == [number != lost for number in range(5)]

    @rule()
    async def test_a_lost_object_may_be_stored_again(self, tier: TierSession) -> None:
        """After the load that has found the damage."""
        keys = chunks(1, 2, 3)
        await tier.must_store(keys)
        self.remove_object(tier.tier, keys[1])
        if Ability.ANY_LENGTH in self.abilities:
            self.write_object(tier.tier, keys[2], b"short")
        await tier.load(keys)
        await tier.must_store(keys)
        await tier.must_load(keys)

    @rule(Ability.BREAKS)
    async def test_broken_storage_costs_misses_and_may_heal(self, tier: TierSession) -> None:
        """A call may raise, which counts as a failure of its batch; what it must not do is claim anything."""
        await tier.must_store(chunks(1, 2))
        self.break_storage(tier.tier)
        for _ in range(3):
            for call in (tier.load, tier.store, tier.lookup):
                try:
                    answers = await call(chunks(1, 2) if call != tier.store else chunks(3, 4))
                except Exception:
                    continue
                assert call == tier.lookup or not any(answers), f"{call.__name__} claims success: {answers}"
        self.mend_storage(tier.tier)
        await tier.must_store(chunks(3, 4))
        await tier.must_load(chunks(1, 2, 3, 4))
