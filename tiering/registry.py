"""The one door for tiers and eviction policies, the built-in ones included: entry points, or registration by code.

Installed plugins are found by the metadata of their distributions; only the one that is asked for is imported, so a
broken plugin that nobody names never matters. Nothing is remembered about what was found: a forked or spawned process
finds the same plugins. What code registers exists in that process and its later forks only.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import metadata
from typing import Generic, TypeVar

import pluggy

from tiering import hookspecs
from tiering.errors import ConfigError, PluginError, text_of
from tiering.policies.policy import EvictionPolicy
from tiering.spelling import did_you_mean
from tiering.tier import API_VERSION, Tier, TierConfig, TierContext

__all__ = [
    "InstalledPlugin",
    "SecondaryTierFactory",
    "installed_policies",
    "installed_tiers",
    "register_policy",
    "register_tier",
    "resolve_policy",
    "resolve_tier",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InstalledPlugin:
    """One installed tier or policy, as its distribution's metadata describes it; it may still fail to load.

    Attributes:
        name: what a configuration calls it.
        distribution: the distribution that brought it.
        version: that distribution's version.
        module: what its entry point would import.
    """

    name: str
    distribution: str
    version: str
    module: str


@dataclass(frozen=True, slots=True)
class _Door(Generic[T]):
    """How classes of one kind are found and checked.

    Attributes:
        noun: the kind, for messages.
        group: entry-point group.
        hook: name of the hook that returns the class.
        contract: the class to derive from.
        name_attribute: the class attribute that must equal the name.
        arguments: what its constructor is called with, by position.
        registered: classes that code registered in this process or in the one it was forked from.
    """

    noun: str
    group: str
    hook: str
    contract: type[T]
    name_attribute: str
    arguments: tuple[str, ...]
    registered: dict[str, type[T]] = field(default_factory=dict)

    def installed(self) -> list[InstalledPlugin]:
        plugins = [
            InstalledPlugin(point.name, *_distribution_of(point), point.value)
            for point in metadata.entry_points(group=self.group)
        ]
        return sorted(plugins, key=lambda plugin: (plugin.name, plugin.distribution))

    def register(self, cls: type[T]) -> None:
        name = getattr(cls, self.name_attribute, None)
        if not isinstance(name, str) or not name:
            raise PluginError(f"{_full_name(cls)} cannot be registered: its {self.name_attribute} must name it")
        self._check(cls, name, f"{self.noun} {name!r} ({_full_name(cls)})")
        known = self.registered.setdefault(name, cls)
        if known is not cls:
            raise PluginError(
                f"two classes want to be the {self.noun} {name!r}: {_full_name(known)} is registered already, "
                f"{_full_name(cls)} is refused"
            )

    def resolve(self, name: str) -> type[T]:
        points = list(metadata.entry_points(group=self.group, name=name))
        code = self.registered.get(name)
        owners = [f"distribution {_distribution_of(point)[0]!r}" for point in points]
        owners += [f"{_full_name(code)}, registered by code"] if code else []
        if not owners:
            raise PluginError(self._unknown(name))
        if len(owners) > 1:
            raise PluginError(f"the {self.noun} {name!r} is claimed by {' and by '.join(sorted(owners))}; keep one")
        if code:
            return code
        origin = f"{self.noun} {name!r} of {owners[0]}"
        return self._check(self._load(points[0], origin), name, origin)

    def _unknown(self, name: str) -> str:
        installed = sorted({plugin.name for plugin in self.installed()})
        return (
            f"unknown {self.noun} {name!r}{did_you_mean(name, [*installed, *self.registered])}"
            f"; installed: {_listed(installed)}; registered by code in this process: {_listed(sorted(self.registered))}"
        )

    def _load(self, point: metadata.EntryPoint, origin: str) -> object:
        """Import one plugin and ask it for its class.

        The hook manager lives for this one question, so that nothing has to be kept in step with other processes.
        """
        manager = pluggy.PluginManager("tiering")
        manager.add_hookspecs(hookspecs)
        try:
            manager.register(point.load(), point.name)
            manager.check_pending()
            found: object = getattr(manager.hook, self.hook)()
        except ModuleNotFoundError as error:
            raise PluginError(f"{origin} needs the module {error.name!r}, which is not installed") from error
        except (Exception, SystemExit) as error:
            raise PluginError(f"{origin} cannot be loaded: {text_of(error)}") from error
        if found is None:
            raise PluginError(f"{origin} brings no class: {point.value!r} has no function {self.hook} with @hookimpl")
        return found

    def _check(self, cls: object, name: str, origin: str) -> type[T]:
        """Return ``cls`` if it fits the contract; the only place where that is decided."""
        if not (isinstance(cls, type) and issubclass(cls, self.contract)):
            raise PluginError(f"{origin} is {cls!r}, but must be a class derived from {_full_name(self.contract)}")
        missing = sorted(getattr(cls, "__abstractmethods__", ()))
        if missing:
            raise PluginError(f"{origin} lacks {', '.join(missing)}, which {_full_name(self.contract)} asks for")
        own_name = getattr(cls, self.name_attribute, None)
        if own_name != name:
            raise PluginError(f"{origin} has {self.name_attribute} = {own_name!r}, but must have {name!r}")
        version = getattr(cls, "api_version", API_VERSION)
        if not isinstance(version, int) or version > API_VERSION:
            raise PluginError(
                f"{origin} is made for version {version!r} of the contract, but this is version {API_VERSION}: "
                "upgrade kv-tiering"
            )
        config_type = getattr(cls, "config_type", TierConfig)
        if not (isinstance(config_type, type) and issubclass(config_type, TierConfig)):
            raise PluginError(f"{origin} has config_type = {config_type!r}, but must derive it from TierConfig")
        try:
            inspect.signature(cls).bind(*self.arguments)
        except TypeError as error:
            raise PluginError(f"{origin} cannot be constructed with ({', '.join(self.arguments)}): {error}") from error
        return cls


def _distribution_of(point: metadata.EntryPoint) -> tuple[str, str]:
    return (point.dist.name, point.dist.version) if point.dist else ("unknown", "unknown")


def _full_name(cls: object) -> str:
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else repr(cls)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


_TIERS = _Door(
    noun="tier",
    group="tiering.tiers",
    hook="tiering_register_tier",
    contract=Tier,  # type: ignore[type-abstract]  # to compare with, not to construct
    name_attribute="tier_type",
    arguments=("config", "context"),
)
_POLICIES = _Door(
    noun="eviction policy",
    group="tiering.policies",
    hook="tiering_register_policy",
    contract=EvictionPolicy,  # type: ignore[type-abstract]
    name_attribute="policy_name",
    arguments=("rows",),
)


def resolve_tier(name: str) -> type[Tier]:
    """Return the class of the tier that a configuration calls ``name``, importing its plugin if need be.

    Raises:
        PluginError: nothing or more than one thing has this name, it cannot be imported, or it does not fit
            `tiering.tier`. Other plugins are unaffected, and asking again is possible.
    """
    return _TIERS.resolve(name)


def resolve_policy(name: str) -> type[EvictionPolicy]:
    """Return the class of the eviction policy that a configuration calls ``name``; errors as `resolve_tier`."""
    return _POLICIES.resolve(name)


def register_tier(cls: type[Tier]) -> None:
    """Make ``cls`` known as the tier ``cls.tier_type`` in this process and in those forked from it later.

    Registering the same class again does nothing. A spawned process has to register it itself; an entry point is
    found everywhere.

    Raises:
        PluginError: it does not fit the contract, or another class has the name; the registry is unchanged.
    """
    _TIERS.register(cls)


def register_policy(cls: type[EvictionPolicy]) -> None:
    """Make ``cls`` known as the eviction policy ``cls.policy_name``; otherwise as `register_tier`."""
    _POLICIES.register(cls)


def installed_tiers() -> list[InstalledPlugin]:
    """List the installed tiers by name, without importing any; what code registered is not among them."""
    return _TIERS.installed()


def installed_policies() -> list[InstalledPlugin]:
    """List the installed eviction policies by name, without importing any."""
    return _POLICIES.installed()


class SecondaryTierFactory:
    """Makes tiers from their configuration."""

    @staticmethod
    def register_tier(tier: type[Tier]) -> None:
        """Make a tier known by code; see `register_tier`."""
        register_tier(tier)

    @staticmethod
    def create_secondary_tier(config: TierConfig, context: TierContext) -> Tier:
        """Construct the tier that ``config.type`` names; no I/O happens before its `Tier.open`.

        Raises:
            PluginError: as `resolve_tier`.
            ConfigError: ``config`` is not of the class that this tier asks for.
        """
        tier = resolve_tier(config.type)
        if not isinstance(config, tier.config_type):
            raise ConfigError(
                f"tier {context.name!r} needs its configuration as {_full_name(tier.config_type)}, "
                f"not {_full_name(type(config))}"
            )
        return tier(config, context)
