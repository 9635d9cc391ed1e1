"""Google and Azure through obstore, and what else fsspec knows: settings that can be used, and those that cannot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from object_harness import Clock, namespace, run_on_default_threads
from pydantic import ValidationError

from tiering.errors import PermanentTierError
from tiering.tier import TierContext
from tiers.s3.clients.fsspec_client import open_fsspec
from tiers.s3.clients.obstore_client import ObstoreClient
from tiers.s3.config import FsspecConfig, S3Config
from tiers.s3.tier import FsspecTier, S3Tier

AZURE = {"account_name": "account", "account_key": "c2VjcmV0"}


def configured(provider: str, options: dict[str, Any], **settings: Any) -> S3Config:
    return S3Config.model_validate(
        {"bucket": "kv", "client": "obstore", "provider": provider, "storage_options": options} | settings
    )


@pytest.mark.parametrize(
    ("provider", "options", "settings"),
    [
        ("azure", AZURE, {}),
        ("azure", AZURE, {"endpoint_url": "http://127.0.0.1:10000/account"}),
        ("azure", {"account_name": "account", "sas_token": "sv=1&sig=x"}, {}),
        ("gcs", {}, {}),
        ("gcs", {}, {"endpoint_url": "http://127.0.0.1:4443"}),
        ("gcs", {"skip_signature": True}, {"prefix": "prod"}),
    ],
)
def test_a_client_is_made_without_a_request(provider: str, options: dict[str, Any], settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        client = await ObstoreClient.open(configured(provider, options, **settings))
        assert client.can_put_if_absent
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("provider", "options", "says"),
    [
        ("azure", {}, "bucket kv at Azure: open a client: GenericError: account_name is missing in storage_options"),
        ("azure", {"account_name": "a", "account_key": "not base64!"}, "account_key in storage_options is no key"),
        ("azure", AZURE | {"nonsense": 1}, "does not know a key in storage_options"),
        ("gcs", {"nonsense": 1}, "bucket kv at Google: open a client: UnknownConfigurationKeyError"),
        ("gcs", {"service_account": "/absent.json"}, "the file service_account in storage_options cannot be opened"),
        ("gcs", {"service_account_key": "{"}, "the service account in storage_options cannot be read"),
    ],
)
def test_options_that_cannot_be_used_refuse_to_start(provider: str, options: dict[str, Any], says: str) -> None:
    context = TierContext("objects", 64, namespace(64), Clock(), run_on_default_threads, lambda keys: None)
    with pytest.raises(PermanentTierError) as caught:
        asyncio.run(S3Tier(configured(provider, options), context).open())
    assert says in str(caught.value)
    assert "not base64!" not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"client": "s3fs"}, "provider azure needs client: obstore"),
        ({"region": "here"}, "region is of no use for provider azure"),
        ({"access_key_id": "a", "secret_access_key": "b"}, "access_key_id is of no use for provider azure"),
        ({"credentials_file": "/x"}, "credentials_file is of no use for provider azure"),
    ],
)
def test_settings_of_another_cloud_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        configured("azure", AZURE, **wrong)


@pytest.mark.parametrize(
    ("url", "says"),
    [("no-such-thing://bucket/prefix", "fsspec has no file system for no-such-thing://"), ("gs://b/p", "gcsfs")],
)
def test_file_systems_that_are_not_installed(context: TierContext, url: str, says: str) -> None:
    if url.startswith("gs:"):
        try:
            import gcsfs  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("gcsfs is installed")
    with pytest.raises(PermanentTierError, match=says):
        asyncio.run(FsspecTier(FsspecConfig(url=url), context).open())


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("file://{tmp}/chunks", "chunks/a/b"),
        ("file://{tmp}/chunks/", "chunks/a/b"),
        ("local://{tmp}/other", "other/a/b"),
    ],
)
def test_where_a_url_leads(tmp_path: Path, url: str, where: str) -> None:
    async def scenario() -> None:
        client = await open_fsspec(FsspecConfig(url=url.format(tmp=tmp_path)), run_on_default_threads)
        await client.put("a/b", b"content", asyncio.get_running_loop().time() + 10, only_if_absent=False)
        assert await client.head("a/b") == 7
        assert [found.name async for found in client.list("a/")] == ["a/b"]
        assert [found.num_bytes async for found in client.list("")] == [7]
        await client.close()

    asyncio.run(scenario())
    assert (tmp_path / where).read_bytes() == b"content"
