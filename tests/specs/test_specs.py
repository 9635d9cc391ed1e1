"""What a spec works out from the engine's facts and the configuration, and what it refuses."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from engine_facts import config, engine

from tiering.build import namespace_of
from tiering.errors import ConfigError, RegionError
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.reuse_filter import FilterReusedOffloadingManager
from tiering.specs import OffloadingSpec, OffloadingSpecFactory
from tiering.specs.cpu import CPUOffloadingSpec
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.transfer_specs import CPULoadStoreSpec, GPULoadStoreSpec


def test_the_class_tree_is_the_one_of_the_seed() -> None:
    assert TieringOffloadingSpec.__bases__ == (CPUOffloadingSpec,)
    assert CPUOffloadingSpec.__bases__ == (OffloadingSpec,)
    assert OffloadingSpec.__abstractmethods__ == {"get_manager", "get_handlers"}
    assert OffloadingSpec.build_metric_definitions(config()) == {}


@pytest.mark.parametrize(
    ("tokens", "facts", "block_size", "factor"),
    [
        ((16,), {}, None, 1),
        ((16,), {}, 16, 1),
        ((16,), {}, 256, 16),
        ((16, 16), {}, 64, 4),
        ((16, 64), {}, None, 1),
        ((32,), {"context_parallel_factor": 2}, 128, 2),
    ],
)
def test_block_size_factor(tokens: tuple[int, ...], facts: dict[str, Any], block_size: int | None, factor: int) -> None:
    spec = CPUOffloadingSpec(engine(*tokens, **facts), config(block_size=block_size))
    assert spec.block_size_factor == factor
    parallel = facts.get("context_parallel_factor", 1)
    assert spec.gpu_block_size == tuple(number * parallel for number in tokens)
    assert spec.hash_block_size == 16 * parallel
    assert spec.num_blocks == 2**20 // (8192 if factor == 1 else spec.layout.row_bytes)


@pytest.mark.parametrize(
    ("tokens", "facts", "block_size", "message"),
    [
        ((24,), {}, None, "block of 24 tokens is not a multiple of its hash block of 16 tokens"),
        ((16, 40), {}, None, "block of 40 tokens is not a multiple of its hash block of 16 tokens"),
        ((16,), {"context_parallel_factor": 2, "tokens_per_hash": 32}, None, "block of 32 .* hash block of 64"),
        ((16,), {}, 24, "block_size: 24: is not a multiple of the engine's block size of 16 tokens"),
        ((32,), {}, 16, "block_size: 16: is not a multiple of the engine's block size of 32 tokens"),
        ((16, 64), {}, 64, "block_size: 64: cannot be chosen .* here of 16, 64 tokens"),
    ],
)
def test_block_sizes_that_do_not_fit(
    tokens: tuple[int, ...], facts: dict[str, Any], block_size: int | None, message: str
) -> None:
    for spec_class in (CPUOffloadingSpec, TieringOffloadingSpec):
        with pytest.raises(ValueError, match=message):
            spec_class(engine(*tokens, **facts), config(block_size=block_size))


@pytest.mark.parametrize("store_threshold", [2, 3])
def test_tc_25_a_threshold_is_refused_with_tiers(store_threshold: int) -> None:
    with pytest.raises(ConfigError, match=f"store_threshold: {store_threshold}: is not supported"):
        TieringOffloadingSpec(engine(), config(store_threshold=store_threshold))
    for allowed in (0, 1):
        TieringOffloadingSpec(engine(), config(store_threshold=allowed))


def test_the_filter_comes_with_a_threshold_of_two() -> None:
    for store_threshold, expected in ((0, CPUOffloadingManager), (1, CPUOffloadingManager)):
        spec = CPUOffloadingSpec(engine(), config(store_threshold=store_threshold))
        assert type(spec.get_manager()) is expected
        assert spec.build_metric_definitions(spec.config) == {}
    spec = CPUOffloadingSpec(engine(), config(store_threshold=3, max_tracker_size=7))
    manager = spec.get_manager()
    assert isinstance(manager, FilterReusedOffloadingManager)
    assert (manager.store_threshold, manager.max_tracker_size) == (3, 7)
    assert list(spec.build_metric_definitions(spec.config)) == ["stores_skipped"]
    assert "stores_skipped" in manager.get_stats()


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("pages", [(4096,), (1000,), (65536, 32768, 4096), (4097, 1, 12345)])
@pytest.mark.parametrize("block_size", [None, 64])
def test_tc_64_the_budget_is_used_and_not_exceeded(ranks: int, pages: tuple[int, ...], block_size: int | None) -> None:
    """Layers and ranks count once each; padding counts against the budget."""
    factor = 1 if block_size is None else 4
    row = -(-ranks * sum(pages) * factor // 4096) * 4096
    for spec_class, (budget, rows) in product(
        (CPUOffloadingSpec, TieringOffloadingSpec), ((row, 1), (2 * row - 1, 1), (10 * row + 7, 10))
    ):
        facts = engine(16, 16, pages=pages, world_size=ranks)
        spec = spec_class(facts, config(cpu_bytes_to_use=budget, block_size=block_size))
        assert (spec.num_blocks, spec.layout.row_bytes) == (rows, row)
        assert budget - row < spec.layout.total_bytes <= budget
    for budget in (1, row - 1):
        with pytest.raises(ConfigError, match=f"cpu_bytes_to_use: {budget} bytes do not hold one row of {row} bytes"):
            CPUOffloadingSpec(facts, config(cpu_bytes_to_use=budget, block_size=block_size))


def test_an_engine_without_kv_tensors_is_refused() -> None:
    with pytest.raises(ConfigError, match="no KV-cache tensors"):
        CPUOffloadingSpec(engine(pages=()), config())


@pytest.fixture
def region_directory(tmp_path: Path) -> dict[str, dict[str, str]]:
    return {"region": {"directory": str(tmp_path)}}


def test_the_manager_is_built_once_and_not_before(region_directory: dict[str, Any], tmp_path: Path) -> None:
    spec = TieringOffloadingSpec(engine(enable_kv_events=True), config(eviction_policy="arc", **region_directory))
    assert list(tmp_path.iterdir()) == []
    manager = spec.get_manager()
    assert manager is spec.get_manager()
    assert isinstance(manager, TieringOffloadingManager)
    assert spec.region is not None
    assert spec.region.mmap_path.parent == tmp_path
    assert manager.primary_tier.rows.policy.policy.policy_name == "arc"
    assert manager.get_stats()["rows"] == spec.num_blocks
    assert manager.prepare_store([b"k" * 8], ReqContext("r")) is not None  # type: ignore[list-item]
    manager.complete_store([b"k" * 8])  # type: ignore[list-item]
    assert list(manager.take_events())
    manager.shutdown()
    assert list(tmp_path.iterdir()) == []


def test_handlers_are_built_once_over_the_same_region(region_directory: dict[str, Any], tmp_path: Path) -> None:
    import torch

    from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor

    settings = config(cpu_bytes_to_use=40_960, block_size=32, **region_directory)
    scheduler = TieringOffloadingSpec(engine(), settings)
    manager = scheduler.get_manager()
    assert isinstance(manager, TieringOffloadingManager)
    with pytest.raises(RegionError, match=r"ranks \[0\] have not joined"):
        scheduler.unlink_region()
    worker = TieringOffloadingSpec(engine(rank=0), settings)
    tensors = [CanonicalKVCacheTensor(torch.zeros((8, page), dtype=torch.int8), page) for page in (4096, 2048)]
    caches = CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(0, 4096), CanonicalKVCacheRef(1, 2048)]])
    found = list(worker.get_handlers(caches))
    again = list(worker.get_handlers(caches))
    assert [(source, target) for source, target, _ in found] == [
        (GPULoadStoreSpec, CPULoadStoreSpec),
        (CPULoadStoreSpec, GPULoadStoreSpec),
    ]
    assert [handler for *_, handler in found] == [handler for *_, handler in again]
    scheduler.unlink_region()
    assert list(tmp_path.iterdir()) == [], "all have joined: nothing can be left behind"
    for tensor in tensors:
        tensor.tensor[2:4] = 7
    store = manager.prepare_store([b"k" * 8], ReqContext("r"))  # type: ignore[list-item]
    assert store is not None
    assert found[0][2].transfer_async(1, (GPULoadStoreSpec([2, 3], [2], [0]), store.store_spec))
    found[0][2].wait({1})
    (row,) = store.store_spec.block_ids.tolist()
    seen = scheduler.region.row_views([row])[0] if scheduler.region else memoryview(b"")
    assert bytes(seen) == b"\x07" * 12288, "the scheduler sees what the worker has stored"
    del seen
    for *_, handler in found:
        handler.shutdown()
    assert worker.region is not None
    worker.region.cleanup()
    manager.shutdown()


def test_handlers_belong_to_a_rank(region_directory: dict[str, Any], tmp_path: Path) -> None:
    from tiering.device import CanonicalKVCaches

    spec = TieringOffloadingSpec(engine(), config(**region_directory))
    with pytest.raises(ConfigError, match="names no rank"):
        next(spec.get_handlers(CanonicalKVCaches([], [])))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> type[OffloadingSpecFactory]:
    monkeypatch.setattr(OffloadingSpecFactory, "_registry", dict(OffloadingSpecFactory._registry))
    return OffloadingSpecFactory


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = "module_with_a_spec"
    source = "from tiering.specs.cpu import CPUOffloadingSpec\nclass OwnSpec(CPUOffloadingSpec): ...\nNotASpec = 7\n"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_the_factory_makes_what_the_configuration_names(registry: type[OffloadingSpecFactory]) -> None:
    assert type(registry.create_spec(engine(), config())) is TieringOffloadingSpec
    assert type(registry.create_spec(engine(), config(spec_name="CPUOffloadingSpec"))) is CPUOffloadingSpec


def test_a_registered_spec_is_imported_when_it_is_asked_for(
    registry: type[OffloadingSpecFactory], own_module: str
) -> None:
    registry.register_spec("Own", own_module, "OwnSpec")
    registry.register_spec("Gone", "module_that_is_gone", "Spec")
    assert own_module not in sys.modules
    assert type(registry.create_spec(engine(), config(spec_name="Own"))).__name__ == "OwnSpec"
    with pytest.raises(ValueError, match=f"'Own' is already registered, as {own_module}.OwnSpec"):
        registry.register_spec("Own", "elsewhere", "OwnSpec")
    with pytest.raises(ConfigError, match="'Gone': cannot be loaded: No module named"):
        registry.create_spec(engine(), config(spec_name="Gone"))


def test_a_spec_by_module_path(registry: type[OffloadingSpecFactory], own_module: str) -> None:
    spec = registry.create_spec(engine(), config(spec_name="OwnSpec", spec_module_path=own_module))
    assert type(spec).__name__ == "OwnSpec"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"spec_name": "Unknown"}, "'Unknown': is not registered; allowed: CPUOffloadingSpec, TieringOffloadingSpec"),
        ({"spec_name": "X", "spec_module_path": "module_that_is_gone"}, "cannot be loaded: No module named"),
        ({"spec_name": "X", "spec_module_path": "module_with_a_spec"}, "cannot be loaded: .* has no attribute 'X'"),
        ({"spec_name": "NotASpec", "spec_module_path": "module_with_a_spec"}, "has no OffloadingSpec of that name"),
    ],
)
def test_specs_that_cannot_be_had(own_module: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OffloadingSpecFactory.create_spec(engine(), config(**settings))


@pytest.mark.parametrize(
    "change",
    [
        {"model_name": "other"},
        {"model_revision": "other"},
        {"weights_digest": "other"},
        {"kv_dtype": "fp8"},
        {"kv_layout": "HND"},
        {"world_size": 2},
        {"parallel_layout": "tp2"},
        {"hash_scheme": "other"},
        {"context_parallel_factor": 2},
    ],
)
def test_whatever_the_bytes_depend_on_changes_the_namespace(change: dict[str, Any]) -> None:
    before = namespace_of(engine(), 4, 65536)
    assert namespace_of(engine(**change), 4, 65536).fingerprint != before.fingerprint
    assert namespace_of(engine(), 2, 65536).fingerprint != before.fingerprint
    assert namespace_of(engine(), 4, 131072).fingerprint != before.fingerprint
    assert namespace_of(engine(16, 16), 4, 65536).fingerprint != before.fingerprint
    assert namespace_of(engine(), 4, 65536).fingerprint == before.fingerprint
    assert namespace_of(engine(engine_id="other", rank=3), 4, 65536).fingerprint == before.fingerprint
