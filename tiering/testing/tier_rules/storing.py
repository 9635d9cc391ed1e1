"""Rules about bytes, answers and keys."""

from __future__ import annotations

import asyncio

import numpy as np

from tiering.keys import OffloadKey, make_offload_key
from tiering.testing.guarded_rows import GuardedRows
from tiering.testing.patterns import fill_row, key_pattern, row_matches
from tiering.testing.tier_rules.session import TierSession, TierUnderTest, chunk, chunks, rule

__all__ = ["StoringRules"]

_CANARY = 0x3C
_ODD_HASHES = (b"a", b"a/b", b"..", b"../../x", b"a\0b", b" \n", b"a" * 8, b"a" * 32, b"\xff" * 32)


class StoringRules(TierUnderTest):
    """What is stored comes back, and nothing else does."""

    @rule()
    async def test_bytes_of_every_kind_come_back(self, tier: TierSession) -> None:
        rows = GuardedRows(4, self.row_bytes)
        for row, content in zip(rows.views, (0, 0xFF, None, 0), strict=True):
            np.asarray(row)[:] = key_pattern(b"anything", self.row_bytes) if content is None else content
        expected = [bytes(row) for row in rows.views]
        assert await tier.tier.store(chunks(1, 2, 3, 4), rows.views) == [True] * 4
        found = GuardedRows(4, self.row_bytes)
        assert await tier.tier.load(chunks(1, 2, 3, 4), found.views) == [True] * 4
        assert [bytes(row) for row in found.views] == expected

    @rule()
    async def test_the_bytes_lie_in_the_storage(self, tier: TierSession) -> None:
        """The back door is what all rules about damage rest on."""
        await tier.must_store(chunks(1, 2, 3))
        for key in chunks(1, 2, 3):
            assert self.read_object(tier.tier, key) == key_pattern(key, self.row_bytes).tobytes()
        assert self.read_object(tier.tier, chunk(4)) is None

    @rule()
    async def test_an_unknown_chunk_is_a_miss(self, tier: TierSession) -> None:
        assert await tier.lookup(chunks(1, 2)) == [False, False]
        assert await tier.load(chunks(1, 2)) == [False, False]
        await tier.must_store(chunks(1))
        assert await tier.lookup(chunks(2)) == [False]

    @rule()
    async def test_hits_and_misses_mix_in_any_order(self, tier: TierSession) -> None:
        await tier.must_store(chunks(1, 2, 3, 4))
        for numbers in ((1, 2, 3, 4), (4, 3, 2, 1), (9, 1, 2), (3, 8, 9, 1, 7), (7, 2), (2,)):
            expected = [number <= 4 for number in numbers]
            assert await tier.lookup(chunks(*numbers)) == expected
            assert await tier.load(chunks(*numbers)) == expected

    @rule()
    async def test_an_empty_batch_has_an_empty_answer(self, tier: TierSession) -> None:
        for _ in range(2):
            assert await tier.tier.lookup([]) == []
            assert await tier.tier.store([], []) == []
            assert await tier.tier.load([], []) == []
            await tier.must_store(chunks(1))

    @rule()
    async def test_every_answer_is_a_list_with_one_bool_per_key(self, tier: TierSession) -> None:
        keys = chunks(1, 2, 3)
        rows = GuardedRows(4, self.row_bytes).views
        for answers in (
            await tier.tier.lookup(keys),
            await tier.tier.store(keys, rows[:3]),
            await tier.tier.lookup([*keys, chunk(9)]),
            await tier.tier.load([*keys, chunk(9)], rows),
        ):
            assert type(answers) is list
            assert all(type(answer) is bool for answer in answers), answers
            assert len(answers) in (3, 4)
        assert len(await tier.tier.load([*keys, chunk(9)], rows)) == 4

    @rule()
    async def test_a_chunk_may_be_stored_again(self, tier: TierSession) -> None:
        """Alone and among new ones; it is there before and afterwards."""
        await tier.must_store(chunks(2, 4))
        await tier.must_store(chunks(1, 2, 3, 4))
        await tier.must_store(chunks(2))
        await tier.must_store(chunks(1, 2, 3, 4))
        await tier.must_load(chunks(1, 2, 3, 4))

    @rule()
    async def test_groups_are_apart(self, tier: TierSession) -> None:
        await tier.must_store([chunk(1, 0), chunk(1, 2)])
        assert await tier.lookup([chunk(1, 2), chunk(1, 1), chunk(1, 0)]) == [True, False, True]
        await tier.must_store([chunk(1, 1), chunk(1, 2**32 - 1)])
        await tier.must_load([chunk(1, group) for group in (2**32 - 1, 1, 0, 2)])

    @rule()
    async def test_keys_of_any_length_and_content(self, tier: TierSession) -> None:
        longest = b"h" * (self.max_key_bytes - 4)
        keys = [make_offload_key(hash_, 0) for hash_ in (*_ODD_HASHES, longest, longest[:-1] + b"i", longest[:-1])]
        await tier.must_store(keys)
        assert await tier.lookup(list(reversed(keys))) == [True] * len(keys)
        await tier.must_load(keys)
        assert await tier.load([make_offload_key(b"a" * 9, 0), make_offload_key(longest[:-2], 0)]) == [False, False]

    @rule()
    async def test_nothing_outside_of_a_row_is_written(self, tier: TierSession) -> None:
        rows = GuardedRows(3, self.row_bytes)
        keys = chunks(1, 2, 3)
        for key, row in zip(keys, rows.views, strict=True):
            fill_row(row, key)
        await tier.tier.store(keys, rows.views)
        await tier.tier.load(keys, rows.views)
        await tier.tier.load(chunks(2, 9), rows.views[1:])
        assert rows.num_guards_hit() == 0

    @rule()
    async def test_a_store_leaves_its_rows_as_they_were(self, tier: TierSession) -> None:
        keys = chunks(1, 2)
        rows = GuardedRows(2, self.row_bytes)
        for key, row in zip(keys, rows.views, strict=True):
            fill_row(row, key)
        await tier.tier.store(keys, rows.views)
        assert all(row_matches(row, key) for key, row in zip(keys, rows.views, strict=True))

    @rule()
    async def test_a_store_keeps_a_copy(self, tier: TierSession) -> None:
        """The row is somebody else's as soon as the call has ended."""
        keys = chunks(1, 2)
        rows = GuardedRows(2, self.row_bytes)
        for key, row in zip(keys, rows.views, strict=True):
            fill_row(row, key)
        assert all(await tier.tier.store(keys, rows.views))
        for row in rows.views:
            np.asarray(row)[:] = _CANARY
        await tier.must_load(keys)

    @rule()
    async def test_a_row_is_left_alone_after_the_call(self, tier: TierSession) -> None:
        """A late write would go into a row that is another chunk's by then."""
        keys = chunks(1, 2, 3)
        await tier.must_store(keys)
        rows = GuardedRows(4, self.row_bytes)
        await tier.tier.load([*keys, chunk(9)], rows.views)
        for row in rows.views:
            np.asarray(row)[:] = _CANARY
        for _ in range(20):
            await asyncio.sleep(0)
        await tier.context.run_blocking(int)  # whatever waits for a thread had its turn
        await tier.must_load(keys)
        assert all((np.asarray(row) == _CANARY).all() for row in rows.views)

    @rule()
    async def test_many_calls_at_once(self, tier: TierSession) -> None:
        shared = chunk(0)
        await tier.must_store([shared])

        async def worker(number: int) -> None:
            own: list[OffloadKey] = chunks(*range(10 * number + 1, 10 * number + 5))
            for _ in range(3):
                await tier.must_store([*own, shared])
                assert await tier.lookup([shared, *own]) == [True] * 5
                await tier.must_load([*own[2:], shared, *own[:2]])

        async with asyncio.TaskGroup() as workers:
            for number in range(8):
                workers.create_task(worker(number))

    @rule()
    async def test_nobody_sees_half_an_object(self, tier: TierSession) -> None:
        """A load beside the store of the same chunks: all bytes or a miss."""
        for number in range(10):
            keys = chunks(2 * number, 2 * number + 1)
            store = asyncio.create_task(tier.store(keys))
            while not store.done():
                await tier.load(keys)
                await asyncio.sleep(0)
            await store
            await tier.must_load(keys)
