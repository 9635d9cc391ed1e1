"""The configuration: what the user chooses, validated once and immutable afterwards.

`tiering.config_file` reads it from YAML or from a mapping and reports every problem with its place. Data from outside
are validated in pydantic's strict JSON mode, in which lists become tuples, but ``true`` is no number and ``"2"`` no
integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from tiering.errors import PluginError
from tiering.quantities import ByteSize, Duration
from tiering.redaction import redacted
from tiering.spelling import did_you_mean
from tiering.tier import TierConfig

if TYPE_CHECKING:
    from tiering.policies.policy import EvictionPolicy
    from tiering.tier import Tier

__all__ = ["TIER_LIST_KEYS", "AvailablePlugins", "RegionConfig", "TieringConfig"]

TIER_LIST_KEYS = ("secondary_tier_configs", "secondary_tiers")
"""The spellings of the list of tiers, the usual one first."""

_IDENTIFYING = {"type", "name"}
"""Settings that say which tier is meant, so that no default can give them."""


@dataclass(frozen=True, slots=True)
class AvailablePlugins:
    """What a configuration may name; passed to pydantic as the validation context.

    Attributes:
        resolve_tier: returns the class of a tier type, or raises `PluginError`.
        resolve_policy: returns the class of an eviction policy, or raises `PluginError`.
        tier_types: lists the tier types, for messages.
    """

    resolve_tier: Callable[[str], type[Tier]]
    resolve_policy: Callable[[str], type[EvictionPolicy]]
    tier_types: Callable[[], Sequence[str]]


def _absolute(path: str) -> str:
    """Refuse what two processes of an engine could take for different directories."""
    if not path.startswith("/") or "\0" in path:
        raise ValueError("must be an absolute path, such as /dev/shm")
    return path


class RegionConfig(BaseModel):
    """Where the shared memory of the rows lies."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    directory: Annotated[str, AfterValidator(_absolute)] = Field(
        default="/dev/shm", description="directory of the region's file; should be a tmpfs"
    )
    join_timeout: Duration = Field(
        default=60.0, description="how long a process waits for the region to be created by another"
    )
    populate_in_background: bool = Field(
        default=False, description="whether the scheduler starts before all pages are there; workers wait for theirs"
    )


def _located(path: tuple[str | int, ...], text: str, value: Any) -> ValidationError:
    """Return an error at ``path`` below the value being validated, with ``text`` as its whole message."""
    problem = PydanticCustomError("tiering", "{text}", {"text": text})
    return ValidationError.from_exception_data("configuration", [InitErrorDetails(type=problem, loc=path, input=value)])


def _faulty(tier_type: str, path: tuple[str | int, ...], error: Exception) -> ValidationError:
    """Return an error for a tier whose model does not do what models do."""
    return _located(path, f"cannot be checked, a fault of this tier: {type(error).__name__}: {error}", tier_type)


def _known_policy(name: str, info: ValidationInfo) -> str:
    if isinstance(info.context, AvailablePlugins):
        try:
            info.context.resolve_policy(name)
        except PluginError as error:
            raise ValueError(str(error)) from error
    return name


def _tier_config(item: Any, info: ValidationInfo) -> TierConfig:
    """Validate one entry of the list of tiers with the model of its tier, the defaults merged under it."""
    if isinstance(item, TierConfig):
        return item
    if not isinstance(info.context, AvailablePlugins):
        raise ValueError("must be a TierConfig; mappings are read by tiering.config_file.parse_config")
    if not isinstance(item, dict):
        raise ValueError("must be a mapping with the key 'type'")
    tier_type = item.get("type")
    if not isinstance(tier_type, str):
        available = ", ".join(info.context.tier_types())
        raise _located(
            ("type",), f"must name its tier with the key 'type'; installed: {available}", item.get("type", item)
        )
    try:
        config_type = info.context.resolve_tier(tier_type).config_type
    except PluginError as error:
        raise _located(("type",), str(error), tier_type) from error
    applicable = config_type.model_fields.keys() - _IDENTIFYING
    defaults = {key: value for key, value in info.data.get("defaults", {}).items() if key in applicable}
    try:
        return config_type.model_validate_json(json.dumps(_merged(defaults, item)), strict=True, context=info.context)
    except ValidationError:
        raise
    except Exception as error:
        raise _faulty(tier_type, (), error) from error


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return ``over`` on top of ``under``, mappings in both merged key by key."""
    merged = under | over
    for key in under.keys() & over.keys():
        if isinstance(under[key], dict) and isinstance(over[key], dict):
            merged[key] = _merged(under[key], over[key])
    return merged


def _named(tiers: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
    """Give each tier without a name the first free one of ``disk``, ``disk-2``, ... for its type."""
    taken: dict[str, int] = {}
    for index, tier in enumerate(tiers):
        if tier.name is not None and not (tier.name.isprintable() and tier.name.strip()):
            raise _located((index, "name"), "must be a word that can be printed", tier.name)
        if tier.name is not None and taken.setdefault(tier.name, index) != index:
            other = f"{TIER_LIST_KEYS[0]}[{taken[tier.name]}]"
            raise _located((index, "name"), f"is the name of {other} too; names must differ", tier.name)
    named = []
    for index, tier in enumerate(tiers):
        name, number = tier.name or tier.type, 1
        while taken.setdefault(name, index) != index:
            number += 1
            name = f"{tier.type}-{number}"
        named.append(tier if tier.name else tier.model_copy(update={"name": name}))
    return tuple(named)


def _apart(tiers: tuple[TierConfig, ...]) -> tuple[TierConfig, ...]:
    """Refuse tiers that would write into one another's places."""
    taken: list[tuple[str, str | None]] = []
    for index, tier in enumerate(tiers):
        try:
            resources = list(tier.exclusive_resources())
        except Exception as error:
            raise _faulty(tier.type, (index,), error) from error
        for resource in resources:
            for other, owner in taken:
                if _overlap(resource, other):
                    raise _located((index,), f"uses {resource}, but tier {owner!r} uses {other}", tier.name)
            taken.append((resource, tier.name))
    return tiers


def _overlap(one: str, other: str) -> bool:
    shorter, longer = sorted((re.sub("/+", "/", f"{place}/") for place in (one, other)), key=len)
    return longer.startswith(shorter)


class TieringConfig(BaseModel):
    """All settings; see ``docs/configuration.md``.

    Unknown keys are refused. Entries of ``secondary_tier_configs`` are validated by the models of their tiers, which
    needs an `AvailablePlugins` as validation context unless they are `TierConfig` objects already.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    cpu_bytes_to_use: Annotated[ByteSize, Field(gt=0, lt=2**63)] = Field(
        description="size of the CPU rows of all ranks together"
    )
    block_size: Annotated[int, Field(gt=0)] | None = Field(
        default=None, description="tokens per chunk, a multiple of the engine's block size; default: that block size"
    )
    eviction_policy: Annotated[str, AfterValidator(_known_policy)] = Field(
        default="lru", description="which chunks leave the CPU rows first: an installed policy"
    )
    offload_prompt_only: bool = Field(default=False, description="whether generated tokens are not offloaded")
    store_threshold: int = Field(
        default=0, ge=0, description="how often a chunk must be seen before it is stored; 0 and 1 store at once"
    )
    max_tracker_size: int = Field(default=64_000, ge=1, description="chunks whose sightings are counted")
    promotion_limit: float = Field(
        default=0.5, gt=0, le=1, description="share of the rows that promotions may hold at a time"
    )
    refill_faster_tiers: bool = Field(
        default=False, description="whether a chunk promoted from one tier is stored in those asked before it, too"
    )
    hold_limit: float = Field(
        default=0.5, ge=0, le=1, description="share of the rows that may stay pinned for waiting requests"
    )
    hold_timeout: Duration = Field(default=30.0, description="how long rows stay pinned for a waiting request")
    region: RegionConfig = Field(default=RegionConfig(), description="the shared memory of the rows")
    copy_threads: int = Field(
        default=1, ge=1, le=64, description="threads per direction that copy KV tensors in host memory"
    )
    copy_cpus: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**16)], ...], Field(min_length=1)] | None = Field(
        default=None, description="processors they run on; default: any"
    )
    spec_name: str = Field(
        default="TieringOffloadingSpec", min_length=1, description="the class that wires manager and workers"
    )
    spec_module_path: str | None = Field(
        default=None, min_length=1, description="module of a spec class that is not one of ours"
    )
    defaults: dict[str, Any] = Field(
        default={}, repr=False, description="settings of every tier that has them and does not set them itself"
    )
    secondary_tier_configs: Annotated[
        tuple[Annotated[SerializeAsAny[TierConfig], PlainValidator(_tier_config)], ...],
        AfterValidator(_named),
        AfterValidator(_apart),
    ] = Field(
        default=(),
        strict=False,
        validation_alias=AliasChoices(*TIER_LIST_KEYS),
        description="the tiers below the CPU rows, in the order in which they are asked",
    )

    @field_serializer("defaults")
    def _without_secrets(self, defaults: dict[str, Any]) -> Any:
        return redacted(defaults)

    @property
    def copy_cpu_set(self) -> set[int] | None:
        """`copy_cpus` as the copy engine takes it."""
        return None if self.copy_cpus is None else set(self.copy_cpus)

    @model_validator(mode="after")
    def _promotions_are_not_filtered(self) -> Self:
        if self.store_threshold >= 2 and self.secondary_tier_configs and self.spec_name == "TieringOffloadingSpec":
            text = "is not supported with secondary tiers; allowed: 0 or 1, or spec_name CPUOffloadingSpec"
            raise _located(("store_threshold",), text, self.store_threshold)
        return self

    @model_validator(mode="after")
    def _defaults_are_used(self) -> Self:
        known = {key for tier in self.secondary_tier_configs for key in type(tier).model_fields}
        known -= _IDENTIFYING
        for key, value in self.defaults.items() if self.secondary_tier_configs else ():
            if key not in known:
                allowed = f"{did_you_mean(key, known)}; allowed: {', '.join(sorted(known))}"
                raise _located(("defaults", key), f"no configured tier has this setting{allowed}", value)
        return self
