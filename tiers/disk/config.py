"""What a user may say about a disk tier."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from tiering.tier import ByteSize, Duration, TierConfig

__all__ = ["DiskConfig"]


def _yaml_switch(value: object) -> object:
    # YAML 1.1 reads the bare words on and off as booleans.
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _named_directory(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("is empty; allowed: the path of a directory")
    if isinstance(value, str) and "\0" in value:
        raise ValueError("holds a null byte")
    if isinstance(value, str) and re.search(r"\$[A-Za-z_{]", value):
        raise ValueError("holds a variable, and none is expanded; allowed: the path itself, also with ~")
    return value


class DiskConfig(TierConfig):
    """Settings of one disk tier.

    ``root_dirs`` are resolved; they must be distinct and none may lie inside another.
    """

    root_dirs: tuple[Annotated[Path, BeforeValidator(_named_directory)], ...] = Field(
        min_length=1, description="directories to keep chunks in, one per disk; chunks are striped over them"
    )
    capacity: ByteSize = Field(
        gt=0, description="bytes of disk space to use over all roots; chunks count with header and padding"
    )
    # While one thread computes a checksum, the others must keep the disk busy.
    threads: int = Field(default=8, ge=1, le=64, description="reads and writes in flight at a time")
    eviction: Literal["lru", "fifo"] = Field(
        default="lru",
        description="who makes room: what was not used for longest, or (fifo) what was stored first and not used since",
    )
    ttl: Duration | None = Field(default=None, gt=0, description="drop chunks this long after they were stored")
    admission: Literal["all", "second_offer"] = Field(
        default="all", description="store every chunk offered, or only from its second offer on"
    )
    write_budget: ByteSize | None = Field(
        default=None, gt=0, description="bytes to write per day at most, to save the drive; default: no limit"
    )
    slab_bytes: ByteSize = Field(
        default=2**30, gt=0, description="size of a slab file in a new directory; an existing one keeps its own"
    )
    o_direct: Annotated[Literal["auto", "on", "off"], BeforeValidator(_yaml_switch)] = Field(
        default="auto", description="bypass the page cache: where it works (auto), or refuse to start without it (on)"
    )
    free_space_reserve: ByteSize = Field(
        default=0, description="bytes to leave free on each root's file system; below it no slab grows"
    )
    recover: Literal["quiet", "strict", "none"] = Field(
        default="quiet",
        description="chunks of an earlier run: keep what verifies, refuse to start on any damage, or start empty",
    )
    snapshot_every: int = Field(default=100_000, ge=1, description="index changes between two index snapshots")
    probe_interval: Duration = Field(
        default=10.0, gt=0, description="how often to try a root again that failed, or a disk that was full"
    )

    @field_validator("root_dirs")
    @classmethod
    def _distinct_roots(cls, root_dirs: tuple[Path, ...]) -> tuple[Path, ...]:
        try:
            resolved = tuple(root.expanduser().resolve() for root in root_dirs)
        except (OSError, RuntimeError) as error:  # no such user, or links in a circle
            raise ValueError(f"leads nowhere: {error}") from error
        for place, root in enumerate(resolved):
            for other in resolved[:place]:
                if root.is_relative_to(other) or other.is_relative_to(root):
                    raise ValueError(f"{root} and {other} are the same or one inside the other; allowed: separate ones")
        return resolved

    def exclusive_resources(self) -> list[str]:
        """See `TierConfig.exclusive_resources`: the roots."""
        return [str(root) for root in self.root_dirs]
