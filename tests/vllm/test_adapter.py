"""The two adapters against vLLM's own types, without an engine."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, HostCopyEngine
from tiering.device import SingleDirectionOffloadingHandler as Handler
from tiering.device.host_copy import copy_pieces
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager

pytest.importorskip("vllm.version", reason="vLLM is not installed here")
with warnings.catch_warnings():
    # What vLLM imports is not ours to mend.
    warnings.simplefilter("ignore")
    from tiering_vllm import KVTieringSpec
    from tiering_vllm.v030.manager import TieringManagerAdapter
    from tiering_vllm.v030.rows_spec import RowsLoadStoreSpec
    from tiering_vllm.v030.worker import TieringWorkerAdapter
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import _parse_tier_filter
    from vllm.v1.kv_offload.base import GPULoadStoreSpec, LookupResult, Medium, ReqContext

pytestmark = pytest.mark.vllm

KEYS = [bytes([number]) * 32 + b"\0\0\0\0" for number in range(8)]


def context(req_id: str = "r", params: Any = None, **more: Any) -> Any:
    return ReqContext(req_id, params, **more)


@pytest.fixture
def adapter() -> Any:
    return TieringManagerAdapter(
        TieringOffloadingManager(CPUOffloadingManager(4, enable_events=True)), {"nvme": "disk", "bucket": "s3"}
    )


def stored(adapter: Any, keys: list[bytes], req_id: str = "w") -> None:
    assert adapter.prepare_store(keys, context(req_id)) is not None
    adapter.complete_store(set(keys), context(req_id), True)
    adapter.on_request_finished(context(req_id))
    adapter.on_schedule_end(None)


def test_a_chunk_is_missing_then_pending_then_a_hit(adapter: Any) -> None:
    assert adapter.lookup(KEYS[0], context()) is LookupResult.MISS
    store = adapter.prepare_store(KEYS[:1], context("w"))
    assert store.keys_to_store == KEYS[:1]
    assert adapter.lookup(KEYS[0], context()) is LookupResult.HIT_PENDING
    adapter.complete_store(set(KEYS[:1]), context("w"))
    assert adapter.lookup(KEYS[0], context()) is LookupResult.HIT
    load = adapter.prepare_load(set(KEYS[:1]), context())
    assert pickle.loads(pickle.dumps(load)).rows.tolist() == store.store_spec.rows.tolist()
    adapter.complete_load(set(KEYS[:1]), context())
    assert adapter.tiering.get_stats()["completions_unexpected"] == 0


def test_a_failed_store_leaves_nothing(adapter: Any) -> None:
    adapter.prepare_store(KEYS[:2], context())
    adapter.complete_store(set(KEYS[:2]), context(), success=False)
    assert adapter.lookup(KEYS[0], context()) is LookupResult.MISS
    assert adapter.tiering.get_stats()["rows_free"] == 4


def test_a_declined_store_can_be_offered_again(adapter: Any) -> None:
    """vLLM moves on past what was accepted, and offers again what was not."""
    adapter.prepare_store(KEYS[:3], context("first"))
    assert adapter.prepare_store(KEYS[3:6], context("second")) is None
    adapter.complete_store(set(KEYS[:3]), context("first"))
    assert adapter.prepare_store(KEYS[3:6], context("second")).keys_to_store == KEYS[3:6]


def test_more_chunks_than_rows_are_stored_from_the_head(adapter: Any) -> None:
    request = context()
    if not hasattr(request, "set_offload_key_position"):
        pytest.skip("vLLM tells the order since 0.31")
    for position, key in enumerate(KEYS):
        request.set_offload_key_position(key, position)
    assert adapter.prepare_store(set(KEYS), request).keys_to_store == KEYS[:4]


def test_events_carry_the_medium_of_their_tier(adapter: Any) -> None:
    stored(adapter, KEYS[:4])
    stored(adapter, KEYS[4:5])
    events = [(set(event.keys), event.medium, event.removed, event.ownership) for event in adapter.take_events()]
    assert events == [
        (set(KEYS[:4]), Medium.CPU, False, None),
        ({KEYS[3]}, Medium.CPU, True, None),
        ({KEYS[4]}, Medium.CPU, False, None),
    ]


def test_a_reset_empties_the_rows(adapter: Any) -> None:
    stored(adapter, KEYS[:2])
    adapter.reset_cache()
    assert adapter.lookup(KEYS[0], context()) is LookupResult.MISS


@pytest.mark.parametrize(
    ("wanted", "tiers"),
    [
        (["nvme"], {"nvme"}),
        (["s3"], {"s3"}),
        ([], set()),
        ([{"medium": "STORAGE"}], {"nvme", "bucket"}),
        ([{"medium": "STORAGE", "locality": "LOCAL"}], {"nvme"}),
        ([{"medium": "CPU"}], set()),
        ([{"medium": "STORAGE", "locality": "REMOTE"}, "nvme"], {"nvme", "bucket"}),
        ([{"medium": "TAPE"}], set()),
        ("nvme", set()),
    ],
)
def test_a_request_may_name_its_tiers_in_our_way_or_in_that_of_vllm(adapter: Any, wanted: Any, tiers: set[str]) -> None:
    request = context("r", {"kv_load_tiers": wanted}, load_tier_filter=_parse_tier_filter(wanted))
    assert adapter._context(request).load_tiers == tiers


def test_a_finished_request_is_forgotten(adapter: Any) -> None:
    adapter.on_new_request(context("r"))
    adapter.on_request_finished(context("r"))
    assert adapter._contexts == {}
    adapter.complete_store(set(KEYS[:1]), context("r"))
    assert adapter._contexts == {}


def test_every_statistic_has_a_definition(adapter: Any) -> None:
    stored(adapter, KEYS[:4])
    stored(adapter, KEYS[4:5])
    stats = adapter.get_stats()
    values = stats.data["data"]
    assert values["vllm:kv_tiering_rows"] == {(): 4}
    assert values["vllm:kv_tiering_evictions"] == {(): 1}
    assert values.keys() <= KVTieringSpec.build_metric_definitions({}).keys()
    assert adapter.get_stats() is None, "nothing has happened since"


class Flaky:
    """Fails as many copies as it is told, after having spoilt the destination."""

    def __init__(self) -> None:
        self.num_failures = 0

    def __call__(self, src: Any, dst: Any, sizes: Any) -> None:
        copy_pieces(src, dst, sizes)
        if self.num_failures:
            self.num_failures -= 1
            copy_pieces(dst[::-1].copy(), dst, sizes)
            raise OSError("copied badly")


@pytest.fixture
def worker() -> Iterator[Callable[[Flaky], tuple[Any, Any, Any]]]:
    made = []

    def make(copy: Flaky) -> tuple[Any, Any, Any]:
        generator = torch.Generator().manual_seed(0)
        blocks = torch.randint(-128, 128, (6, 64), dtype=torch.int8, generator=generator)
        rows = torch.zeros((4, 64), dtype=torch.int8)
        caches = CanonicalKVCaches([CanonicalKVCacheTensor(blocks, 64)], [[CanonicalKVCacheRef(0, 64)]])
        shared = ([blocks], [rows], 1, caches.group_data_refs)
        store = Handler(*shared, gpu_to_cpu=True, copy_engine=HostCopyEngine("s", copy))
        load = Handler(*shared, gpu_to_cpu=False, copy_engine=HostCopyEngine("l", copy))
        made.append(TieringWorkerAdapter(store, load))
        return made[-1], blocks, rows

    yield make
    for each in made:
        each.shutdown()


@pytest.mark.parametrize("num_failures", [0, 1, 3])
def test_a_failed_copy_is_repeated_until_it_has_succeeded(worker: Any, num_failures: int) -> None:
    copy = Flaky()
    adapter, blocks, rows = worker(copy)
    truth = blocks.clone()
    copy.num_failures = num_failures
    assert adapter.submit_store(1, GPULoadStoreSpec([5, 2], [2], [0]), RowsLoadStoreSpec(np.array([3, 0])))
    adapter.wait({1})
    assert [(result.job_id, result.success) for result in adapter.get_finished()] == [(1, True)]
    assert torch.equal(rows[[3, 0]], truth[[5, 2]])
    blocks.zero_()
    copy.num_failures = num_failures
    assert adapter.submit_load(2, RowsLoadStoreSpec(np.array([3, 0])), GPULoadStoreSpec([5, 2], [2], [0]))
    adapter.wait({2})
    assert [(result.job_id, result.success, result.transfer_size) for result in adapter.get_finished()] == [
        (2, True, 128)
    ]
    assert torch.equal(blocks[[5, 2]], truth[[5, 2]])
    assert not blocks[[0, 1, 3, 4]].any()


def test_a_copy_that_always_fails_is_reported_in_the_end(worker: Any) -> None:
    copy = Flaky()
    copy.num_failures = 1000
    adapter, _, _ = worker(copy)
    assert adapter.submit_store(1, GPULoadStoreSpec([5], [1], [0]), RowsLoadStoreSpec(np.array([3])))
    adapter.wait({1})
    assert [result.success for result in adapter.get_finished()] == [False]
    assert copy.num_failures == 1000 - 4
