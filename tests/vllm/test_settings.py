"""What the plugin works out before vLLM comes in: settings, weights, layout, version, metrics."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tiering_vllm.engine_version import adapter_of
from tiering_vllm.kv_layout import describe_kv_layout
from tiering_vllm.metrics import METRICS, StatsDelta
from tiering_vllm.settings import read_settings
from tiering_vllm.weights_digest import model_folder, weights_digest

from tiering.errors import ConfigError, PluginError
from tiering.manager import TieringOffloadingManager
from tiering.primary import CPUOffloadingManager

SELECTION = {"spec_name": "KVTieringSpec", "spec_module_path": "tiering_vllm"}


def test_settings_may_be_written_inline() -> None:
    extra = {**SELECTION, "cpu_bytes_to_use": 2**20, "secondary_tiers": [], "self_describing_kv_events": True}
    settings = read_settings(extra, [16])
    assert settings.tiering.cpu_bytes_to_use == 2**20
    assert settings.tiering.block_size is None


def test_settings_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_text("cpu_bytes_to_use: 1MiB\nblock_size: 64\n")
    extra = {**SELECTION, "config_file": str(file), "kv_layout": "FLASHINFER"}
    settings = read_settings(extra, [16])
    assert (settings.tiering.block_size, settings.kv_layout) == (64, "FLASHINFER")


@pytest.mark.parametrize(("factor", "groups", "block_size"), [(3, [16], 48), (3, [16, 16], 48), (1, [16, 64], None)])
def test_blocks_per_chunk_is_block_size_in_blocks(factor: int, groups: list[int], block_size: int | None) -> None:
    settings = read_settings({"cpu_bytes_to_use": 2**20, "blocks_per_chunk": factor}, groups)
    assert settings.tiering.block_size == block_size


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"config_file": "x.yaml", "cpu_bytes_to_use": 1}, "leave out cpu_bytes_to_use"),
        ({"config_file": "x.yaml", "blocks_per_chunk": 1}, "leave out blocks_per_chunk"),
        ({"cpu_bytes_to_use": 1, "blocks_per_chunk": 0}, "blocks_per_chunk: 0: allowed: 1 or more"),
        ({"cpu_bytes_to_use": 1, "blocks_per_chunk": True}, "blocks_per_chunk: True"),
        ({"cpu_bytes_to_use": 1, "blocks_per_chunk": 2}, "blocks of 16, 64 tokens"),
        ({"cpu_bytes_to_use": 1, "canonical_layout": True}, "canonical_layout"),
        ({"cpu_bytes_to_use": 1, "kv_layout": 3}, "kv_layout: 3: must be a text"),
        ({"cpu_bytes_to_use": 1, "backpressure": {}}, "backpressure"),
        ({}, "cpu_bytes_to_use"),
    ],
)
def test_settings_that_cannot_be_used_are_named(extra: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_settings(extra, [16, 64])


def save_tensors(path: Path, tensors: Mapping[str, bytes]) -> None:
    header, offset = {}, 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [offset, offset + len(content)]}
        offset += len(content)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors.values()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"rope_theta": 10000}')
    save_tensors(folder / "model.safetensors", {"k": os.urandom(300_000), "v": os.urandom(10), "empty": b""})
    (folder / "tokenizer.json").write_text("{}")
    return folder


def spoil(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_the_digest_is_of_what_the_kv_depends_on(folder: Path, tmp_path: Path) -> None:
    before = weights_digest(folder)
    (folder / "tokenizer.json").write_text("[]")
    os.utime(folder / "model.safetensors", (1, 1))
    assert weights_digest(folder) == before
    (folder / "config.json").write_text('{"rope_theta": 20000}')
    assert weights_digest(folder) != before


@pytest.mark.parametrize("offset", [-1, -10, -11, -300_010, -150_010, 20])
def test_the_digest_sees_both_ends_and_the_middle_of_each_tensor_and_the_header(folder: Path, offset: int) -> None:
    before = weights_digest(folder)
    spoil(folder / "model.safetensors", offset)
    assert weights_digest(folder) != before


@pytest.mark.parametrize("offset", [0, 999_999])
def test_files_of_other_formats_are_sampled_from_end_to_end(tmp_path: Path, offset: int) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(os.urandom(1_000_000))
    before = weights_digest(file)
    spoil(file, offset)
    assert weights_digest(file) != before


def test_a_damaged_header_is_only_another_digest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 100)
    assert len(weights_digest(tmp_path)) == 32


def test_a_model_of_the_hub_is_found_in_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert model_folder("org/name") is None
    cached = tmp_path / "models--org--name"
    (cached / "snapshots" / "aaa").mkdir(parents=True)
    assert model_folder("org/name") == cached / "snapshots" / "aaa"
    (cached / "snapshots" / "bbb").mkdir()
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("bbb")
    with pytest.raises(ConfigError, match="holds aaa, bbb"):
        model_folder("org/name")
    assert model_folder("org/name", "main") == cached / "snapshots" / "bbb"
    assert model_folder("org/name", "aaa") == cached / "snapshots" / "aaa"
    with pytest.raises(ConfigError, match="'ccc'"):
        model_folder("org/name", "ccc")
    assert model_folder(str(tmp_path)) == tmp_path


def test_the_layout_names_what_packs_the_bytes(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor: 0\nflags\t\t: fpu avx2 amx_tile\n")
    cpu = describe_kv_layout("cpu", "0.32.1+cpu", "LBHNC", "", cpuinfo)
    assert cpu.startswith("cpu layout=LBHNC vllm=0.32 isa=")
    assert cpu.endswith(":amx_tile+avx2")
    assert describe_kv_layout("cuda", "0.32.0", "LBHNC", "X", cpuinfo) == "cuda layout=LBHNC vllm=0.32 chosen=X"
    assert describe_kv_layout("cpu", "0.32", None, "", tmp_path / "none").endswith(":")


@pytest.mark.parametrize("version", ["0.30.0", "0.31.2", "0.32.0+cpu", "0.32.1.dev3"])
def test_supported_versions_have_their_adapter(version: str) -> None:
    assert adapter_of(version) == "v030"


@pytest.mark.parametrize("version", ["0.29.1", "0.33.0", "1.32.0", "dev", ""])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(PluginError, match=r"supported: 0\.30, 0\.31, 0\.32"):
        adapter_of(version)


def test_statistics_become_increases_and_values() -> None:
    stats = dict(TieringOffloadingManager(CPUOffloadingManager(4)).get_stats())
    tier = {metric.key: 0 for metric in METRICS if metric.per_tier} | {"breaker": "closed"}
    delta = StatsDelta()
    seen = {(each.metric.key, each.labels): each.value for each in delta.observe({**stats, "tiers": {"disk": tier}})}
    assert seen[("rows", ())] == 4
    assert seen[("breaker", ("1:disk",))] == 0
    assert ("loaded_chunks", ("1:disk",)) not in seen
    for loaded, increase in ((5, 5), (7, 2)):
        tier |= {"loaded_chunks": loaded, "breaker": "open" if loaded == 5 else "half-open"}
        seen = {(e.metric.key, e.labels): e.value for e in delta.observe({**stats, "tiers": {"disk": tier}})}
        assert seen.pop(("loaded_chunks", ("1:disk",))) == increase
        assert seen == ({("breaker", ("1:disk",)): 1} if loaded == 5 else {})


def test_all_metrics_are_dropped_with_those_of_vllm() -> None:
    assert all("vllm" in metric.name for metric in METRICS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)
