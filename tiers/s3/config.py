"""What a user may say about an object tier."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, SecretStr, model_validator

from tiering.tier import Duration, LimitsConfig, TierConfig

__all__ = ["FsspecConfig", "ObjectLimitsConfig", "ObjectTierConfig", "RetryConfig", "S3Config", "VerdictsConfig"]

_REDACTED = "**********"
_LOCAL_PROTOCOLS = {"file", "local"}


def _redact(value: Any) -> Any:
    """Return ``value`` with every string in it hidden; nobody can list under which names clients take secrets."""
    if isinstance(value, dict):
        return {key: _redact(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_redact(inner) for inner in value]
    return _REDACTED if isinstance(value, str) else value


def _clean_prefix(prefix: str) -> str:
    parts = prefix.strip("/").split("/") if prefix.strip("/") else []
    if any(part in {"", ".", ".."} for part in parts):
        raise ValueError("must be names separated by single slashes, none of them '.' or '..'")
    return "/".join(parts)


def _web_address(url: str) -> str:
    if not url.startswith(("http://", "https://")) or not urlsplit(url).netloc:
        raise ValueError("must begin with http:// or https:// and a host")
    _refuse_secrets(url, url)
    return url


def _directory_url(url: str) -> str:
    if not re.match(r"[a-z][a-z0-9+.-]*://.", url):
        raise ValueError("must be the URL of a directory, such as file:///mnt/shared/chunks or gs://bucket/prefix")
    protocol, _, place = url.partition("://")
    if protocol not in _LOCAL_PROTOCOLS:
        host = place.partition("/")[0]
        _refuse_secrets(url, place if ":" in host else host)  # what follows the colon may be a password with slashes
    elif not place.startswith("/") or "\0" in place:
        raise ValueError(f"must be an absolute path, such as {protocol}:///mnt/shared/chunks")
    return url


def _refuse_secrets(url: str, authority: str) -> None:
    """Refuse what may be a secret in a URL, since URLs are shown; a user would be named in ``authority``."""
    if "@" in authority:
        raise ValueError("must not hold credentials; allowed: the same URL without them, and them in storage_options")
    if "?" in url or "#" in url:
        raise ValueError("must not hold '?' or '#'; allowed: scheme, host and path, and all else in storage_options")


def _bucket_name(name: str) -> str:
    if "/" in name:
        raise ValueError("must be the name alone, without '/'; allowed beside it: endpoint_url and prefix")
    return name


StorageOptions = Annotated[dict[str, Any], PlainSerializer(_redact), Field(repr=False)]
"""Arguments for a client library; strings in them are never shown."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ObjectLimitsConfig(LimitsConfig):
    """How much may be under way, and for how long. The deadlines end the requests, not only the waiting for them,
    and a little earlier: what was answered in time still counts."""

    transfers: int = Field(default=16, ge=1, le=1024, description="objects being read or written at a time")
    questions: int = Field(default=64, ge=1, le=1024, description="existence checks at a time")
    connect_timeout: Duration = Field(default=3.0, gt=0, description="how long a new connection may take")


class RetryConfig(_Section):
    """How failures that may pass are tried again. Delays double from the first to the longest, and are jittered."""

    attempts: int = Field(default=4, ge=1, le=20, description="tries per operation, the first one included")
    first_delay: Duration = Field(default=0.1, description="longest pause before the second try")
    max_delay: Duration = Field(default=2.0, description="longest pause before any try")
    budget: int = Field(
        default=64,
        ge=0,
        description="retries in stock; ten operations that succeed bring one back, so that a store "
        "in trouble is not asked several times as often",
    )


class VerdictsConfig(_Section):
    """How long it is remembered which chunks the store has."""

    positive_ttl: Duration = Field(default=60.0, description="how long a chunk that was there is believed to be there")
    negative_ttl: Duration = Field(
        default=0.0, description="how long an absent chunk is believed absent, though another engine may store it"
    )
    max_entries: int = Field(default=200_000, ge=1, description="chunks to remember, the latest ones")


class ObjectTierConfig(TierConfig):
    """Settings that every object tier has."""

    limits: ObjectLimitsConfig = Field(default=ObjectLimitsConfig(), description="concurrency and deadlines")
    retry: RetryConfig = Field(default=RetryConfig(), description="what happens after failures that may pass")
    verdicts: VerdictsConfig = Field(default=VerdictsConfig(), description="what is remembered of existence checks")
    list_on_start: bool = Field(
        default=False, description="list the namespace once when opening, so that first lookups need no requests"
    )
    storage_options: StorageOptions = Field(
        default={}, description="further arguments of the client library; they win over what the tier would choose"
    )


class S3Config(ObjectTierConfig):
    """Settings of a tier in a bucket.

    Without credentials here, the ordinary AWS chain is asked: environment, shared files, container, instance.
    """

    type: Literal["s3"] = "s3"
    bucket: Annotated[str, AfterValidator(_bucket_name)] = Field(min_length=1, description="an existing bucket")
    prefix: Annotated[str, AfterValidator(_clean_prefix)] = Field(
        default="", description="everything is kept below it, and nothing outside of it is read, written or listed"
    )
    client: Literal["s3fs", "obstore"] = Field(default="s3fs", description="which client library to use")
    provider: Literal["s3", "gcs", "azure"] = Field(
        default="s3", description="whose protocol the bucket speaks; gcs and azure need client obstore"
    )
    endpoint_url: Annotated[str, AfterValidator(_web_address)] | None = Field(
        default=None, description="where the service is; default: that of AWS"
    )
    region: str | None = Field(default=None, description="the bucket's region; default: from the AWS chain")
    access_key_id: SecretStr | None = Field(default=None, description="fixed credentials, instead of the AWS chain")
    secret_access_key: SecretStr | None = Field(default=None, description="belongs to access_key_id")
    session_token: SecretStr | None = Field(default=None, description="belongs to access_key_id")
    profile: str | None = Field(default=None, description="profile of the AWS chain")
    credentials_file: Path | None = Field(
        default=None, description="AWS credentials file; it is read again when the service refuses the credentials"
    )

    @model_validator(mode="after")
    def _settings_fit_together(self) -> S3Config:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key must be given together")
        if self.session_token is not None and self.access_key_id is None:
            raise ValueError("session_token needs access_key_id and secret_access_key")
        if self.access_key_id is not None and (self.profile is not None or self.credentials_file is not None):
            raise ValueError("fixed credentials leave no use for profile or credentials_file")
        if self.provider != "s3" and self.client != "obstore":
            raise ValueError(f"provider {self.provider} needs client: obstore")
        of_aws = ("access_key_id", "secret_access_key", "session_token", "profile", "credentials_file", "region")
        given = [name for name in of_aws if getattr(self, name) is not None]
        if self.provider != "s3" and given:
            raise ValueError(
                f"{given[0]} is of no use for provider {self.provider}; allowed: its own settings, in storage_options"
            )
        return self

    def exclusive_resources(self) -> list[str]:
        return [f"{self.endpoint_url or self.provider}/{self.bucket}/{self.prefix}"]


class FsspecConfig(ObjectTierConfig):
    """Settings of a tier in any file system that fsspec knows."""

    type: Literal["fsspec"] = "fsspec"
    url: Annotated[str, AfterValidator(_directory_url)] = Field(
        description="directory to keep objects in, such as file:///mnt/shared/chunks or gs://bucket/prefix",
    )

    def exclusive_resources(self) -> list[str]:
        protocol, _, place = self.url.partition("://")
        # As a disk tier names its directories.
        return [os.path.realpath(place) if protocol in _LOCAL_PROTOCOLS else self.url]
