"""What a disk tier accepts as its configuration."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import yaml
from disk_harness import Disk
from pydantic import ValidationError

from tiering.errors import ConfigError, PermanentTierError
from tiers.disk.config import DiskConfig


def config(**settings: object) -> DiskConfig:
    return DiskConfig.model_validate({"type": "disk", "root_dirs": ["/a"], "capacity": "1GiB"} | settings)


@pytest.mark.parametrize("roots", [["/a", "/a"], ["/a", "/a/b"], ["/a/b", "/a"], ["/a", "/b/../a"], []])
def test_roots_must_be_separate(roots: list[str]) -> None:
    with pytest.raises(ValidationError, match="root_dirs"):
        config(root_dirs=roots)


def test_roots_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ValidationError, match="the same or one inside the other"):
        config(root_dirs=[tmp_path / "link", tmp_path / "target"])
    assert config(root_dirs=["here"]).root_dirs == (Path(os.getcwd()).resolve() / "here",)
    assert config(root_dirs=["/a", "/ab"]).root_dirs == (Path("/a"), Path("/ab"))


@pytest.mark.parametrize(
    ("root", "message"),
    [
        ("", "is empty; allowed: the path of a directory"),
        (" ", "is empty"),
        ("$HOME/cache", "holds a variable, and none is expanded"),
        ("/mnt/${NODE}", "holds a variable"),
        ("~nobody-of-that-name/cache", "leads nowhere"),
        ("/a\0b", "null byte"),
    ],
)
def test_a_root_that_names_no_directory_is_refused(root: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(root_dirs=[root])


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(tmp_path / "one")
    with pytest.raises((ValidationError, PermanentTierError), match=r"Symlink loop|Too many levels"):
        asyncio.run(Disk(tmp_path).make(root_dirs=[tmp_path / "one"]).open())


def test_a_home_is_expanded_and_a_dollar_may_be_in_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of/somebody")
    assert config(root_dirs=["~/a", "/b$", "/c$1"]).root_dirs == (
        Path("/home/of/somebody/a"),
        Path("/b$"),
        Path("/c$1"),
    )


@pytest.mark.parametrize("capacity", [2**62, 2**63 - 1])
def test_a_capacity_that_no_memory_can_list_is_refused(capacity: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"capacity {capacity} is too large"):
        Disk(tmp_path).make(capacity=capacity)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"capacity": 0},
        {"capacity": "10GB"},
        {"threads": 0},
        {"threads": 65},
        {"recover": "maybe"},
        {"root_dirr": ["/a"]},
        {"eviction": "random"},
        {"admission": "third_offer"},
        {"ttl": 0},
        {"write_budget": 0},
    ],
)
def test_what_cannot_be_meant_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(settings))):
        config(**settings)


def test_capacity_is_required() -> None:
    with pytest.raises(ValidationError, match="capacity"):
        DiskConfig.model_validate({"type": "disk", "root_dirs": ["/a"]})


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_on_and_off_mean_the_same_with_and_without_quotes(word: str) -> None:
    assert config(**yaml.safe_load(f"o_direct: {word}")).o_direct == word
    assert config(**yaml.safe_load(f"o_direct: '{word}'")).o_direct == word


def test_roots_are_nobody_elses() -> None:
    assert config(root_dirs=["/a", "/b/../c"]).exclusive_resources() == ["/a", "/c"]


def test_durations_and_sizes_are_written_with_units() -> None:
    settings = config(ttl="2h", write_budget="500GiB", probe_interval="1m")
    assert (settings.ttl, settings.write_budget, settings.probe_interval) == (7200.0, 500 * 2**30, 60.0)
