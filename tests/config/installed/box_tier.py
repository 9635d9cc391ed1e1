"""A tier that looks installed; its settings have one of everything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from tiering.keys import OffloadKey
from tiering.tier import ByteSize, Duration, Tier, TierConfig, hookimpl


class RetryConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")

    attempts: int = Field(default=3, ge=1)
    delay: Duration = 0.1


class BoxConfig(TierConfig):
    root_dirs: tuple[Path, ...]
    capacity: ByteSize = Field(default=2**30, gt=0)
    threads: int = Field(default=4, ge=1)
    mode: Literal["auto", "direct"] = "auto"
    retry: RetryConfig | None = None

    @field_validator("name")
    @classmethod
    def _breaks(cls, name: str | None) -> str | None:
        return str(1 // 0) if name == "divide by zero" else name

    def exclusive_resources(self) -> list[str]:
        return [str(root) for root in self.root_dirs]


class BoxTier(Tier):
    tier_type = "box"
    config_type = BoxConfig

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return [False] * len(keys)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)


@hookimpl
def tiering_register_tier() -> type[Tier]:
    return BoxTier
