"""What is shown of a configuration never contains a secret, not even where its key is misspelt."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tiering.config_file import load_config, parse_config
from tiering.errors import ConfigError
from tiering.redaction import MASK, redacted

SECRET = "tell-nobody"


@pytest.mark.parametrize(
    "settings",
    [
        {"secret_acces_key": SECRET},
        {"session_token": [SECRET]},
        {"access_key_id": {"a": SECRET}},
        {"storage_options": SECRET},
        {"storage_options": {"client_kwargs": {"anything": SECRET}}},
        {"endpoint_url": f"http://{SECRET}:x@host"},
        {"deep": [{"api_key": SECRET}]},
        {"endpoint_url": f"http://user:{SECRET}/x@host"},
        {"url": f"http://host/path?sig={SECRET}&x=1"},
        {"url": f"http://host/path?x={SECRET}"},
        {"url": f"gs://bucket#{SECRET}"},
        {"word": f"secret_access_key: {SECRET}"},
        {"password": SECRET},
    ],
)
def test_what_may_be_a_secret_is_masked(settings: dict[str, object]) -> None:
    shown = redacted(settings)
    assert SECRET not in repr(shown)
    assert MASK in repr(shown)


def test_what_is_none_is_shown() -> None:
    settings = {
        "type": "disk",
        "root_dirs": ["/a"],
        "capacity": "1GiB",
        "limits": {"load_timeout": 3},
        "o_direct": True,
    }
    assert redacted(settings) == settings
    assert redacted("http://host:9000/path") == "http://host:9000/path"


@pytest.mark.parametrize("wrong", [{"secret_acces_key": SECRET}, {"root_dirs": {"token": SECRET}}])
def test_messages_show_no_secret(wrong: dict[str, object]) -> None:
    tier = {"type": "disk", "root_dirs": ["/a"], "capacity": 1 << 20} | wrong
    with pytest.raises(ConfigError) as refused:
        parse_config({"cpu_bytes_to_use": 1, "secondary_tier_configs": [tier]}, environ={})
    assert SECRET not in str(refused.value)


def test_defaults_are_shown_without_secrets() -> None:
    config = parse_config({"cpu_bytes_to_use": 1, "defaults": {"storage_options": {"key": SECRET}}}, environ={})
    assert SECRET not in str(config.model_dump(mode="json"))
    assert SECRET not in repr(config)
    assert config.defaults == {"storage_options": {"key": SECRET}}


def test_a_mask_is_not_taken_for_the_secret(tmp_path: Path) -> None:
    tier = {"type": "s3", "bucket": "b", "access_key_id": SECRET, "secret_access_key": SECRET}
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [tier]}, environ={})
    (shown := tmp_path / "shown.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    with pytest.raises(ConfigError, match=r"2 problems") as refused:
        load_config(shown, environ={})
    assert str(refused.value).count("stands for a secret that was not shown; write the secret itself") == 2


@pytest.mark.parametrize("text", ["*{}", "!{} x", "&{} [", "0{}", "[{}"])
def test_a_password_that_means_something_to_yaml_is_not_shown(text: str) -> None:
    secret = "1234567" if text.startswith("0") else SECRET
    name = "TIERING__secondary_tiers__0__secret_access_key"
    with pytest.raises(ConfigError) as refused:
        parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "s3"}]}, environ={name: text.format(secret)})
    assert name in str(refused.value)
    assert secret not in str(refused.value)


def test_what_is_not_even_text_shows_no_secret() -> None:
    environ = {"TIERING__\udc80": "1"}  # a byte that is no UTF-8, as the environment gives it
    with pytest.raises(ConfigError) as refused:
        parse_config({"secondary_tiers": [{"type": "disk", "pin": SECRET}]}, environ=environ)
    assert SECRET not in str(refused.value)
