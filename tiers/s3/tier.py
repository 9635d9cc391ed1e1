"""The two object tiers that can be configured: one for buckets, one for whatever fsspec knows."""

from __future__ import annotations

from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.config import FsspecConfig, S3Config
from tiers.s3.object_tier import ObjectTier

__all__ = ["FsspecTier", "S3Tier"]

_SERVICES = {"s3": "AWS", "gcs": "Google", "azure": "Azure"}


class S3Tier(ObjectTier):
    """Chunks in a bucket."""

    tier_type = "s3"
    config_type = S3Config
    config: S3Config

    def _settings(self) -> tuple[str, str, str, str]:
        config = self.config
        place = f"bucket {config.bucket} at {config.endpoint_url or _SERVICES[config.provider]}"
        return config.prefix, place, config.client, "s3" if config.client == "s3fs" else "obstore"

    async def _make_client(self) -> ObjectClient:
        if self.config.client == "s3fs":
            from tiers.s3.clients.s3fs_client import S3fsClient  # noqa: PLC0415

            return await S3fsClient.open(self.config)
        from tiers.s3.clients.obstore_client import ObstoreClient  # noqa: PLC0415

        return await ObstoreClient.open(self.config)


class FsspecTier(ObjectTier):
    """Chunks in any file system that fsspec knows."""

    tier_type = "fsspec"
    config_type = FsspecConfig
    config: FsspecConfig

    def _settings(self) -> tuple[str, str, str, str]:
        return "", self.config.url, "fsspec", "s3"

    async def _make_client(self) -> ObjectClient:
        from tiers.s3.clients.fsspec_client import open_fsspec  # noqa: PLC0415

        return await open_fsspec(self.config, self.context.run_blocking)
