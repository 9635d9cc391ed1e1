"""Credentials that expire and are renewed while jobs run, and secrets that nobody gets to see."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from object_harness import Clock, Place, keys_of, load, store

from tiering.config_file import load_config
from tiering.errors import PermanentTierError
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault, ProxiedRequest
from tiers.s3.config import S3Config
from tiers.s3.object_tier import ObjectTier

BOTH_CLIENTS = pytest.mark.parametrize("place", ["s3fs-moto", "obstore-moto"], indirect=True)


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        yield proxy


class CredentialsFile:
    """An AWS credentials file with a token that can be replaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("token-one")

    def write(self, token: str) -> None:
        lines = ("[default]", "aws_access_key_id = filekey", "aws_secret_access_key = filesecret")
        self.path.write_text("\n".join([*lines, f"aws_session_token = {token}", ""]))

    def tier(self, place: Place, proxy: FaultProxy, clock: Clock | None = None) -> ObjectTier:
        fixed = {"access_key_id": None, "secret_access_key": None}
        return place.through(proxy).tier(credentials_file=self.path, clock=clock, **fixed)


def carries(token: str) -> HttpFault:
    def matches(request: ProxiedRequest) -> bool:
        return request.headers.get("x-amz-security-token") == token

    return HttpFault(matches=matches, status=400, code="ExpiredToken")


@BOTH_CLIENTS
def test_expired_credentials_are_looked_for_anew(place: Place, proxy: FaultProxy, tmp_path: Path) -> None:
    file = CredentialsFile(tmp_path / "credentials")

    async def scenario() -> None:
        tier = file.tier(place, proxy)
        await tier.open()
        assert await store(tier, *range(8)) == [True] * 8
        assert {request.headers["x-amz-security-token"] for request in proxy.requests} == {"token-one"}
        proxy.add(carries("token-one"))
        file.write("token-two")
        answers = await asyncio.gather(load(tier, *range(8)), store(tier, *range(8, 16)), tier.lookup(keys_of(77)))
        assert answers == [[True] * 8, [True] * 8, [False]]
        assert tier.counters.renewals == 1
        await tier.close()

    asyncio.run(scenario())


@BOTH_CLIENTS
def test_credentials_that_stay_refused_are_not_asked_for_all_the_time(
    place: Place, proxy: FaultProxy, tmp_path: Path
) -> None:
    file = CredentialsFile(tmp_path / "credentials")
    clock = Clock()

    async def scenario() -> None:
        tier = file.tier(place, proxy, clock)
        await tier.open()
        await store(tier, 1)
        proxy.add(carries("token-one"))
        for _ in range(5):
            with pytest.raises(PermanentTierError):
                await load(tier, 1)
        assert tier.counters.renewals == 1
        file.write("token-two")
        clock.now += 10
        assert await load(tier, 1) == [True]
        assert tier.counters.renewals == 2
        await tier.close()

    asyncio.run(scenario())


@BOTH_CLIENTS
def test_without_any_credentials_the_tier_refuses_to_start(
    place: Place, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "absent"))
    (tmp_path / "empty").touch()

    async def scenario() -> None:
        tier = place.through(proxy).tier(
            credentials_file=tmp_path / "empty", access_key_id=None, secret_access_key=None
        )
        with pytest.raises(PermanentTierError, match="no credentials found"):
            await tier.open()

    asyncio.run(scenario())


@BOTH_CLIENTS
def test_secrets_are_never_shown(
    place: Place, proxy: FaultProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    caplog.set_level(logging.DEBUG, "tiers")
    caplog.set_level(logging.DEBUG, "tiering")
    secrets = ("AKSHOWMENOT", "tell-nobody-1", "tell-nobody-2", "tell-nobody-3")
    fixed = {"access_key_id": secrets[0], "secret_access_key": secrets[1], "session_token": secrets[2]}
    echo = b"<Error><Code>%s</Code><AWSAccessKeyId>AKSHOWMENOT</AWSAccessKeyId><Hint>tell-nobody-1</Hint></Error>"
    seen: list[str] = []

    async def scenario() -> None:
        tier = place.through(proxy).tier(**fixed)
        seen.extend((repr(tier.config), str(tier.config), tier.config.model_dump_json(), repr(tier)))
        await tier.open()
        seen.append(tier.describe())
        for fault in (
            HttpFault(status=403, code="AccessDenied</Code><Hint>tell-nobody-1</Hint><Code>"),
            HttpFault(status=400, code="ExpiredToken"),
            HttpFault(status=503),
            HttpFault(reset=True),
            HttpFault("GET", replace_body=echo),
        ):
            with proxy.during(fault):
                for call in (load(tier, 1), store(tier, 2), tier.lookup(keys_of(3))):
                    try:
                        await call
                    except Exception as error:
                        chain: BaseException | None = error
                        while chain is not None:
                            seen.append(f"{chain!r} {chain}")
                            chain = chain.__cause__
        await tier.close()

    asyncio.run(scenario())
    assert len(seen) >= 10
    for text in (*seen, caplog.text):
        assert not [secret for secret in secrets if secret in text], text


def test_storage_options_are_not_shown_either(tmp_path: Path) -> None:
    config = S3Config.model_validate(
        {
            "type": "s3",
            "bucket": "kv",
            "storage_options": {"secret": "tell-nobody", "config_kwargs": {"x": ["tell-nobody", 3]}},
        }
    )
    assert "tell-nobody" not in repr(config) + config.model_dump_json()
    assert config.storage_options["secret"] == "tell-nobody"
    file = tmp_path / "tiering.yaml"
    file.write_text(
        "cpu_bytes_to_use: 1MiB\nsecondary_tier_configs:\n"
        "  - {type: s3, bucket: kv, access_key_id: tell-nobody, secret_access_key: tell-nobody,"
        " storage_options: {token: tell-nobody}}\n"
    )
    shown = load_config(file)
    assert "tell-nobody" not in repr(shown) + str(shown.model_dump(mode="json"))
