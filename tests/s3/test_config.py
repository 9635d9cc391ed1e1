"""What a user may say about an object tier, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tiering.config_file import parse_config
from tiering.errors import ConfigError, PluginError
from tiering.registry import resolve_tier
from tiering.tier import TierContext
from tiers.s3.aws_session import new_aws_session
from tiers.s3.config import FsspecConfig, S3Config
from tiers.s3.tier import FsspecTier, S3Tier


def test_the_door_leads_to_both_types() -> None:
    assert resolve_tier("s3") is S3Tier
    assert resolve_tier("fsspec") is FsspecTier


@pytest.mark.parametrize(("written", "meant"), [("", ""), ("/", ""), ("a", "a"), ("a/b/", "a/b"), ("/a/b", "a/b")])
def test_prefixes_are_cleaned(written: str, meant: str) -> None:
    assert S3Config(bucket="kv", prefix=written).prefix == meant


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"bucket": ""}, "at least 1 character"),
        ({"bucket": "a/b"}, "must be the name alone, without '/'; allowed beside it: endpoint_url and prefix"),
        ({"prefix": "a/../b"}, "single slashes"),
        ({"prefix": "a//b"}, "single slashes"),
        ({"endpoint_url": "http://user:secret@host"}, "must not hold credentials"),
        ({"endpoint_url": "http://user:sec/ret@host"}, "must not hold credentials"),
        ({"endpoint_url": "http://sec/ret@host"}, "must not hold credentials"),
        (
            {"endpoint_url": "http://host/path?token=secret"},
            "must not hold '\\?' or '#'; allowed: scheme, host and path",
        ),
        ({"endpoint_url": "http://host#secret"}, "must not hold '\\?' or '#'"),
        ({"endpoint_url": "host:9000"}, "must begin with http"),
        ({"endpoint_url": "https://"}, "must begin with http"),
        ({"access_key_id": "a"}, "given together"),
        ({"session_token": "a"}, "needs access_key_id"),
        ({"access_key_id": "a", "secret_access_key": "b", "profile": "c"}, "no use for profile"),
        ({"provider": "gcs"}, "needs client: obstore"),
        ({"client": "boto3"}, "obstore"),
        ({"limits": {"transfers": 0}}, "greater than or equal to 1"),
        ({"bukket": "kv"}, "Extra inputs"),
    ],
)
def test_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        S3Config.model_validate({"bucket": "kv"} | wrong)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/mnt/chunks", "must be the URL of a directory, such as file:///mnt"),
        ("file:/mnt", "must be the URL of a directory"),
        ("gs://", "must be the URL of a directory"),
        ("ftp://user:secret@host/x", "must not hold credentials"),
        ("ftp://user:sec/ret@host/x", "must not hold credentials"),
        ("http://host/x?token=secret", "must not hold '\\?' or '#'"),
        ("file://chunks/a", "must be an absolute path, such as file:///mnt"),
        ("file://./chunks", "must be an absolute path"),
        ("file://~/chunks", "must be an absolute path"),
        ("local://chunks", "must be an absolute path, such as local:///mnt"),
        ("file:///mnt/\0", "must be an absolute path"),
    ],
)
def test_refused_urls(url: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        FsspecConfig(url=url)


@pytest.mark.parametrize("url", ["file:///mnt/me@work/c#?", "sftp://host/home/me@work", "gs://bucket/prefix", "s3://b"])
def test_accepted_urls(url: str) -> None:
    assert FsspecConfig(url=url).url == url


@pytest.mark.parametrize(
    "tier",
    [
        {"type": "s3", "bucket": "kv", "endpoint_url": "http://host/?first=tell-nobody"},
        {"type": "s3", "bucket": "kv", "endpoint_url": "http://user:tell/nobody@host"},
        {"type": "fsspec", "url": "ftp://user:tell/nobody@host"},
        {"type": "fsspec", "url": "http://host#tell-nobody"},
    ],
)
def test_a_refused_url_is_shown_without_what_may_be_secret(tier: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must not hold") as refused:
        parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [tier]}, environ={})
    assert "nobody" not in str(refused.value)


def test_a_directory_of_a_disk_tier_is_no_place_for_objects(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    disk = {"type": "disk", "root_dirs": [str(tmp_path / "disk")], "capacity": "1GiB"}
    for url in ("disk", "/disk", "disk/objects", "link/objects", "other/../disk"):
        objects = {"type": "fsspec", "url": f"file://{tmp_path}/{url}"}
        with pytest.raises(ConfigError, match=f"uses {tmp_path}/disk.*, but tier 'disk' uses {tmp_path}/disk"):
            parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [disk, objects]}, environ={})
    beside = {"type": "fsspec", "url": f"file://{tmp_path}/disks"}
    assert parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [disk, beside]}, environ={})


def test_a_credentials_file_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    lines = ["[default]", "aws_access_key_id = at-home", "aws_secret_access_key = secret", ""]
    (tmp_path / "credentials").write_text("\n".join(lines))

    async def access_key() -> str:
        session = new_aws_session(S3Config(bucket="kv", credentials_file="~/credentials"))
        return (await session.get_credentials()).access_key

    assert asyncio.run(access_key()) == "at-home"


def test_two_tiers_of_one_place_are_told_apart_by_nothing() -> None:
    one, other = S3Config(bucket="kv", prefix="a/"), S3Config(bucket="kv", prefix="a", client="obstore")
    assert one.exclusive_resources() == other.exclusive_resources()


def test_a_missing_client_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, context: TierContext
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"'obstore'.*pip install '\.\[obstore\]' in a checkout"):
        S3Tier(S3Config(bucket="kv", client="obstore"), context)
    with pytest.raises(PluginError, match=r"'s3fs'.*pip install '\.\[s3\]' in a checkout"):
        S3Tier(S3Config(bucket="kv"), context)
