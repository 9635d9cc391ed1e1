from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel, ValidationError

from tiering.config import RegionConfig, TieringConfig
from tiering.config_file import load_config, parse_config
from tiering.errors import ConfigError
from tiering.registry import resolve_tier
from tiering.tier import BreakerConfig, LimitsConfig, TierConfig
from tiers.disk.config import DiskConfig
from tiers.s3.config import (
    FsspecConfig,
    ObjectLimitsConfig,
    ObjectTierConfig,
    RetryConfig,
    S3Config,
    VerdictsConfig,
)


def box(root: str, **settings: object) -> dict[str, object]:
    return {"type": "box", "root_dirs": [root], **settings}


def test_defaults() -> None:
    assert parse_config({"cpu_bytes_to_use": 1024}, environ={}) == TieringConfig(
        cpu_bytes_to_use=1024,
        block_size=None,
        eviction_policy="lru",
        offload_prompt_only=False,
        store_threshold=0,
        max_tracker_size=64_000,
        promotion_limit=0.5,
        hold_limit=0.5,
        hold_timeout=30.0,
        region=RegionConfig(directory="/dev/shm", join_timeout=60.0),
        spec_name="TieringOffloadingSpec",
        spec_module_path=None,
        defaults={},
        secondary_tier_configs=(),
    )


@pytest.mark.parametrize(
    ("written", "meant"), [("8GiB", 2**33), ("1.5 KiB", 1536), ("12B", 12), ("4096", 4096), ("2TiB", 2**41)]
)
def test_tc_84_documented_spellings_of_sizes(written: str, meant: int, tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_text(f"cpu_bytes_to_use: {written}")
    assert load_config(file, environ={}).cpu_bytes_to_use == meant


@pytest.mark.parametrize(("written", "meant"), [("30s", 30.0), ("250ms", 0.25), ("2m", 120.0), (0.5, 0.5), (3, 3.0)])
def test_tc_84_documented_spellings_of_durations(written: object, meant: float) -> None:
    assert parse_config({"cpu_bytes_to_use": 1, "hold_timeout": written}, environ={}).hold_timeout == meant


def test_a_large_size_is_exact() -> None:
    assert parse_config({"cpu_bytes_to_use": "9007199254740993B"}, environ={}).cpu_bytes_to_use == 2**53 + 1


@pytest.mark.parametrize("written", ["30d", "36500d", "1234567.25s", "0.1ms", 1 / 3])
def test_a_duration_that_is_shown_can_be_read_again(written: object) -> None:
    config = parse_config({"cpu_bytes_to_use": 1, "hold_timeout": written}, environ={})
    assert parse_config(config.model_dump(mode="json"), environ={}) == config


def test_whole_numbers_are_shares_too() -> None:
    assert parse_config({"cpu_bytes_to_use": 1, "promotion_limit": 1, "hold_limit": 0}, environ={}).hold_limit == 0


def test_tiers_are_validated_by_their_own_models() -> None:
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [box("/a", capacity="1KiB")]}, environ={})
    (tier,) = config.secondary_tier_configs
    assert type(tier) is resolve_tier("box").config_type
    assert tier.model_dump(mode="json", exclude={"isolation", "limits", "breaker"}) == {
        "type": "box",
        "name": "box",
        "root_dirs": ["/a"],
        "capacity": "1KiB",
        "threads": 4,
        "mode": "auto",
        "retry": None,
    }


def test_names_are_unique_by_default() -> None:
    tiers = [box("/a"), box("/b", name="box-2"), box("/c"), box("/d")]
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": tiers}, environ={})
    assert [tier.name for tier in config.secondary_tier_configs] == ["box", "box-2", "box-3", "box-4"]


def test_a_name_given_to_another_tier_is_not_taken_by_default() -> None:
    tiers = [box("/a"), box("/b", name="box")]
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": tiers}, environ={})
    assert [tier.name for tier in config.secondary_tier_configs] == ["box-2", "box"]


def test_roots_with_a_common_beginning_are_apart() -> None:
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [box("/a/b"), box("/a/bc")]}, environ={})
    assert len(config.secondary_tier_configs) == 2


def test_defaults_lie_under_every_tier() -> None:
    settings = {
        "cpu_bytes_to_use": 1,
        "defaults": {"threads": 8, "retry": {"attempts": 5, "delay": "1s"}},
        "secondary_tiers": [box("/a"), box("/b", threads=2, retry={"delay": "2s"})],
    }
    config = parse_config(settings, environ={})
    first, second = (tier.model_dump() for tier in config.secondary_tier_configs)
    assert (first["threads"], first["retry"]) == (8, {"attempts": 5, "delay": "1s"})
    assert (second["threads"], second["retry"]) == (2, {"attempts": 5, "delay": "2s"})


def test_defaults_without_tiers_wait_for_them() -> None:
    assert parse_config({"cpu_bytes_to_use": 1, "defaults": {"threads": 8}}, environ={}).secondary_tier_configs == ()


def test_tier_objects_need_no_plugins() -> None:
    config = TieringConfig(cpu_bytes_to_use=1, secondary_tier_configs=(TierConfig(type="mine"),))
    assert config.secondary_tier_configs == (TierConfig(type="mine", name="mine"),)
    with pytest.raises(ValidationError, match=r"parse_config"):
        TieringConfig.model_validate({"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "mine"}]})


def test_a_config_cannot_be_changed() -> None:
    config = TieringConfig(cpu_bytes_to_use=1)
    with pytest.raises(ValidationError, match="frozen"):
        config.block_size = 1  # type: ignore[misc]


def test_the_given_mapping_is_left_as_it_was() -> None:
    settings = {"cpu_bytes_to_use": 1, "secondary_tiers": [box("/a")]}
    parse_config(settings, environ={"TIERING__secondary_tiers__0__threads": "1"})
    assert settings == {"cpu_bytes_to_use": 1, "secondary_tiers": [box("/a")]}


def test_paths_may_be_path_objects() -> None:
    settings = {"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "box", "root_dirs": [Path("/a")]}]}
    assert parse_config(settings, environ={}).secondary_tier_configs[0].exclusive_resources() == ["/a"]


def test_what_is_shown_can_be_read_again() -> None:
    settings = {"cpu_bytes_to_use": 3000, "defaults": {"threads": 8}, "secondary_tiers": [box("/a"), box("/b")]}
    config = parse_config(settings, environ={})
    assert parse_config(yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json"))), environ={}) == config


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TIERING__cpu_bytes_to_use": "1KiB"}, {"cpu_bytes_to_use": 1024}),
        ({"TIERING__store_threshold": "2"}, {"store_threshold": 2}),
        ({"TIERING__region__directory": "/x"}, {"region": RegionConfig(directory="/x")}),
        ({"TIERING_OTHER": "x", "OTHER__cpu_bytes_to_use": "x"}, {"cpu_bytes_to_use": 2**33}),
    ],
)
def test_environment_overrides(environ: dict[str, str], expected: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "tiering.yaml"
    file.write_text("cpu_bytes_to_use: 8GiB")
    config = load_config(file, environ)
    assert {key: getattr(config, key) for key in expected} == expected


def test_environment_overrides_reach_into_lists_and_make_them() -> None:
    prefix = "TIERING__secondary_tier_configs"
    environ = {
        f"{prefix}__0__root_dirs__0": "/over",
        f"{prefix}__1__type": "box",
        f"{prefix}__1__root_dirs": "[/x, /y]",
        f"{prefix}__1__retry__attempts": "7",
        **{f"{prefix}__2__root_dirs__{index}": f"/many/{index}" for index in range(12)},
        f"{prefix}__2__type": "box",
    }
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tier_configs": [box("/a")]}, environ=environ)
    roots = [tier.exclusive_resources() for tier in config.secondary_tier_configs]
    assert roots == [["/over"], ["/x", "/y"], [f"/many/{index}" for index in range(12)]]
    assert config.secondary_tier_configs[1].model_dump()["retry"]["attempts"] == 7


def test_the_environment_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERING__block_size", "32")
    assert parse_config({"cpu_bytes_to_use": 1}).block_size == 32


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TIERING__store_threshold", "-1", ": store_threshold: -1: must be greater than or equal to 0"),
        ("TIERING__BLOCK_SIZE", "1", ": BLOCK_SIZE: 1: unknown key, did you mean 'block_size'"),
        ("TIERING__cpu_bytes_to_use__0", "1", ": leads to no setting; allowed: "),
        ("TIERING__secondary_tier_configs__1__type", "box", ": leads to no setting; allowed: "),
        ("TIERING__secondary_tier_configs__0__threads", "[0", ": secondary_tier_configs[0].threads: is not valid YAML"),
        ("TIERING__secondary_tier_configs", "[{type: bux}]", ": secondary_tier_configs[0].type: 'bux': unknown tier"),
    ],
)
def test_a_wrong_override_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"cpu_bytes_to_use": 1, "secondary_tier_configs": []}, environ={name: value})
    assert f"environment variable {name}{message}" in str(caught.value)


def test_the_example_can_be_used_and_overridden() -> None:
    example = Path(__file__).parents[2] / "examples" / "tiering.yaml"
    config = load_config(example, environ={"TIERING__secondary_tier_configs__0__root_dirs__0": "/elsewhere"})
    (disk,) = config.secondary_tier_configs
    assert (config.cpu_bytes_to_use, disk.type) == (2**28, "disk")
    assert disk.model_dump(mode="json")["root_dirs"] == ["/elsewhere"]


def test_every_setting_is_documented_with_its_default() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    expected = [
        *defaults_of(TieringConfig),
        *defaults_of(RegionConfig),
        *defaults_of(TierConfig),
        *defaults_of(LimitsConfig),
        *defaults_of(BreakerConfig),
        *defaults_of(DiskConfig, TierConfig),
        *defaults_of(S3Config, ObjectTierConfig),
        *defaults_of(FsspecConfig, ObjectTierConfig),
        *defaults_of(ObjectTierConfig, TierConfig),
        *defaults_of(ObjectLimitsConfig, LimitsConfig, "limits."),
        *defaults_of(RetryConfig, prefix="retry."),
        *defaults_of(VerdictsConfig, prefix="verdicts."),
    ]
    assert [row[0].strip("|` ") for row in rows] == [key for key, _ in expected]
    for row, (key, default) in zip(rows, expected, strict=True):
        if default is not None:
            assert row[2].strip("`") == default, key
    assert f"`threads` is `{DiskConfig.model_fields['threads'].default}` here" in text


def defaults_of(
    model: type[BaseModel], base: type[BaseModel] = BaseModel, prefix: str = ""
) -> list[tuple[str, str | None]]:
    """Return the settings that a model adds to those of its base; of each default, how it is written, or None."""
    rows: list[tuple[str, str | None]] = []
    for name, info in model.model_fields.items():
        shown = model.model_construct().model_dump(mode="json", include={name}).get(name)
        if name not in base.model_fields:
            default = str(shown).lower() if isinstance(shown, bool) else str(shown)
            words = info.is_required() or shown in ("", None) or isinstance(shown, dict | list | tuple)
            rows.append((prefix + name, "required" if info.is_required() else None if words else default))
    return rows
