"""What a user may say about an object tier, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tiering.errors import PluginError
from tiering.registry import resolve_tier
from tiering.tier import TierContext
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
        ({"bucket": "a/b"}, "pattern"),
        ({"prefix": "a/../b"}, "single slashes"),
        ({"prefix": "a//b"}, "single slashes"),
        ({"endpoint_url": "http://user:secret@host"}, "must not hold credentials"),
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


@pytest.mark.parametrize("url", ["/mnt/chunks", "file:/mnt", "ftp://user:secret@host/x"])
def test_refused_urls(url: str) -> None:
    with pytest.raises(ValidationError):
        FsspecConfig(url=url)


def test_two_tiers_of_one_place_are_told_apart_by_nothing() -> None:
    one, other = S3Config(bucket="kv", prefix="a/"), S3Config(bucket="kv", prefix="a", client="obstore")
    assert one.exclusive_resources() == other.exclusive_resources()


def test_a_missing_client_library_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, context: TierContext
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PluginError, match=r"'obstore'.*kv-tiering\[obstore\]"):
        S3Tier(S3Config(bucket="kv", client="obstore"), context)
    with pytest.raises(PluginError, match=r"'s3fs'.*kv-tiering\[s3\]"):
        S3Tier(S3Config(bucket="kv"), context)
