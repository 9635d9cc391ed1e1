"""The filter in front of a manager: only what was seen often enough is stored."""

from __future__ import annotations

import pytest
from manager_rig import ABSENT, PENDING, R1, R2, R3, READY, key, keys

from tiering.keys import OffloadKey
from tiering.offloading_manager import PrefixLookup
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.reuse_filter import FilterReusedOffloadingManager
from tiering.testing import check_quiescent


class Filtered:
    def __init__(self, num_rows: int = 8, **options: int) -> None:
        self.backing = CPUOffloadingManager(num_rows)
        self.manager = FilterReusedOffloadingManager(self.backing, **options)
        self.num_rows = num_rows

    def serve(self, request: ReqContext, wanted: list[OffloadKey]) -> list[OffloadKey]:
        """Serve a request as an engine does; returns what was stored."""
        for one in wanted:
            if not self.manager.lookup(one, request):
                break
        store = self.manager.prepare_store(wanted, request)
        assert store is not None
        self.manager.complete_store(store.keys_to_store)
        self.manager.on_request_finished(request)
        self.manager.on_schedule_end()
        return store.keys_to_store

    def check(self) -> None:
        check_quiescent(self.backing, self.num_rows)


def test_tc_23_later_chunks_of_a_prompt_qualify_too() -> None:
    filtered = Filtered(store_threshold=2)
    assert filtered.serve(R1, keys(1, 2, 3, 4)) == []
    assert filtered.serve(R2, keys(1, 2, 3, 4)) == keys(1, 2, 3, 4)
    stats = filtered.manager.get_stats()
    assert (stats["stores_skipped"], stats["chunks_tracked"]) == (4, 4)
    filtered.check()


def test_tc_23_a_chunk_pushed_out_of_the_tracker_starts_again() -> None:
    filtered = Filtered(store_threshold=2, max_tracker_size=3)
    for request in (R1, R2, R3):
        assert filtered.serve(request, keys(1, 2, 3, 4)) == []
        assert filtered.manager.num_tracked == 3
    assert filtered.serve(R1, keys(4)) == keys(4), "the last ones are still known"
    filtered.check()


def test_tc_23_what_is_stored_already_is_not_filtered() -> None:
    filtered = Filtered(num_rows=3, store_threshold=2, max_tracker_size=3)
    for request in (R1, R2):
        filtered.serve(request, keys(1, 2))
    filtered.serve(R1, keys(11, 12, 13))  # pushes 1 and 2 out of the tracker
    skipped = filtered.manager.num_skipped
    assert filtered.serve(R2, keys(1, 2)) == []
    assert filtered.manager.num_skipped == skipped, "nothing was skipped, it was there"
    for request in (R1, R2):
        filtered.serve(request, keys(21, 22))
    assert filtered.backing.rows.index.keys() == set(keys(1, 21, 22)), "the head of the older prefix stayed"
    filtered.check()


def test_a_request_counts_once_however_often_it_asks() -> None:
    filtered = Filtered(store_threshold=2)
    for _ in range(5):
        assert filtered.manager.lookup(key(1), R1) is False
        assert filtered.manager.lookup_prefix(keys(1, 2), R1) == PrefixLookup(0, ABSENT)
        filtered.manager.on_schedule_end()
    assert filtered.serve(R1, keys(1)) == []
    assert filtered.serve(R2, keys(1)) == keys(1)
    filtered.check()


def test_requests_without_a_name_count_each_time() -> None:
    filtered = Filtered(store_threshold=3)
    nobody = ReqContext()
    assert filtered.serve(nobody, keys(1)) == []
    assert filtered.serve(nobody, keys(1)) == []
    assert filtered.serve(nobody, keys(1)) == keys(1)
    filtered.check()


def test_lookup_prefix_counts_like_lookup() -> None:
    one_by_one, at_once = Filtered(store_threshold=2), Filtered(store_threshold=2)
    for number in range(4):
        request = ReqContext(f"r{number}")
        for one in keys(1, 2, 3):
            if not one_by_one.manager.lookup(one, request):
                break
        at_once.manager.lookup_prefix(keys(1, 2, 3), request)
        for filtered in (one_by_one, at_once):
            filtered.serve(request, keys(1, 2))
    assert one_by_one.manager._sightings.keys() == at_once.manager._sightings.keys()
    assert one_by_one.manager.get_stats() == at_once.manager.get_stats()


def test_everything_else_passes_through() -> None:
    filtered = Filtered(store_threshold=2)
    for request in (R1, R2):
        filtered.manager.on_new_request(request)
        filtered.serve(request, keys(1, 2))
    manager = filtered.manager
    rows = manager.prepare_load(keys(1, 2), R3).block_ids.tolist()
    assert rows == [filtered.backing.rows.index[one] for one in keys(1, 2)]
    manager.complete_load(keys(1, 2), R3)
    manager.touch(keys(1, 2))
    assert manager.status(key(1), R3) is READY
    assert not manager.has_pending_work()
    manager.on_request_finished(R3)
    filtered.backing.prepare_store(keys(9), R1)
    assert manager.status(key(9), R1) is PENDING
    manager.complete_store(keys(9), success=False)
    manager.on_request_finished(R1)
    manager.reset_cache()
    assert manager.status(key(1), R1) is ABSENT
    manager.shutdown()
    filtered.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store_threshold": 1}, "store_threshold must be at least 2, not 1"),
        ({"store_threshold": 2, "max_tracker_size": 0}, "max_tracker_size must be at least 1, not 0"),
    ],
)
def test_senseless_numbers_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Filtered(**options)
