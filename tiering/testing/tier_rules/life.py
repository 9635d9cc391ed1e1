"""Rules about opening, closing, and living behind a manager."""

from __future__ import annotations

from pathlib import Path

from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.manager import TieringOffloadingManager
from tiering.naming import Namespace
from tiering.primary import CPUPrimaryTierOffloadingManager
from tiering.request import ReqContext
from tiering.testing.patterns import fill_row, row_matches
from tiering.testing.plain_rows import PlainRows
from tiering.testing.quiescence import check_quiescent
from tiering.testing.resource_watch import ResourceWatch
from tiering.testing.stepping import drain
from tiering.testing.tier_rules.session import Ability, TierSession, TierUnderTest, chunks, rule

__all__ = ["LifeRules"]

_NUM_CHUNKS = 4


class LifeRules(TierUnderTest):
    """A tier gives back what it took, and keeps what it promised to keep."""

    @rule()
    async def test_it_may_be_closed_without_a_call(self, tier: TierSession) -> None:
        """Another tier of the engine could not be opened."""

    @rule()
    async def test_nothing_is_left_behind(self, tier: TierSession) -> None:
        """No thread and no file descriptor, after many calls of every kind."""
        await tier.must_store(chunks(1, 2))
        for number in range(50):
            await tier.load(chunks(1, 2, 100 + number))
            await tier.lookup(chunks(1, 200 + number))

    def test_chunks_outlive_a_close(self, tmp_path: Path) -> None:
        self.require(Ability.PERSISTS)

        async def scenario() -> None:
            for number in range(1, 4):
                async with self.opened(tmp_path) as tier:
                    await tier.must_store(chunks(number))
            async with self.opened(tmp_path) as tier:
                assert await tier.lookup(chunks(3, 4, 2, 1)) == [True, False, True, True]
                await tier.must_load(chunks(1, 2, 3))

        self.run(scenario())

    def test_another_namespace_is_not_found(self, tmp_path: Path) -> None:
        self.require(Ability.PERSISTS)

        async def scenario() -> None:
            async with self.opened(tmp_path) as tier:
                await tier.must_store(chunks(1, 2))
            async with self.opened(tmp_path, model_name="another model") as tier:
                assert await tier.lookup(chunks(1, 2)) == [False, False]
                assert await tier.load(chunks(1, 2)) == [False, False]
                await tier.must_store(chunks(1))
            async with self.opened(tmp_path) as tier:
                await tier.must_load(chunks(1, 2))

        self.run(scenario())

    def test_it_works_behind_a_manager(self, tmp_path: Path) -> None:
        """Constructed on the scheduler thread, run on a loop thread; closed while stores are under way."""
        with ResourceWatch() if self.watches_resources else _NoWatch():
            self._play_engine(tmp_path, closes_while_busy=False)
            if Ability.PERSISTS in self.abilities:
                self._play_engine(tmp_path, closes_while_busy=True)

    def _play_engine(self, place: Path, *, closes_while_busy: bool) -> None:
        rows = PlainRows(_NUM_CHUNKS, self.row_bytes)
        worker = self._worker(place, rows)
        request = ReqContext("request")
        try:
            primary = CPUPrimaryTierOffloadingManager(_NUM_CHUNKS, mmap_region=rows)
            manager = TieringOffloadingManager(primary, [worker], row_bytes=self.row_bytes, promotion_limit=1.0)
            first = 10 * closes_while_busy
            keys = chunks(*range(first, first + _NUM_CHUNKS))
            store = manager.prepare_store(keys, request)
            assert store is not None
            for key, row in zip(keys, store.store_spec.block_ids.tolist(), strict=True):
                fill_row(rows.array[row].data, key)
            manager.complete_store(keys)
            if closes_while_busy:
                worker.shutdown()
                assert [all(result.succeeded) for result in worker.get_finished_jobs()] == [True]
                worker = self._worker(place, rows)
                manager = TieringOffloadingManager(
                    CPUPrimaryTierOffloadingManager(_NUM_CHUNKS, mmap_region=rows),
                    [worker],
                    row_bytes=self.row_bytes,
                    promotion_limit=1.0,
                )
            drain(manager)
            manager.on_request_finished(request)
            manager.reset_cache()
            rows.array[:] = 0
            while (found := manager.lookup_prefix(keys, request)).must_wait:
                drain(manager)
            assert found.num_ready == _NUM_CHUNKS
            loaded = manager.prepare_load(keys, request).block_ids.tolist()
            assert all(row_matches(rows.array[row].data, key) for key, row in zip(keys, loaded, strict=True))
            manager.complete_load(keys, request)
            manager.on_request_finished(request)
            drain(manager)
            check_quiescent(manager, _NUM_CHUNKS)
        finally:
            worker.shutdown()

    def _worker(self, place: Path, rows: PlainRows) -> TierWorker:
        return TierWorker(
            lambda context: self.make_tier(place, context, None),
            JobLoop(),
            rows.row_views,
            name="tier under test",
            row_bytes=self.row_bytes,
            namespace=Namespace("model", row_bytes=self.row_bytes),
            close_timeout_seconds=self.timeout_seconds,
        )


class _NoWatch(ResourceWatch):
    def check(self) -> None:
        """Whatever is left behind is not looked at."""
