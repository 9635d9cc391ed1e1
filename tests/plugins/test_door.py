"""How plugins are found, and what is said of those that do not fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tiering import hookspecs
from tiering.config_file import load_config, parse_config
from tiering.errors import ConfigError, PluginError
from tiering.keys import OffloadKey
from tiering.naming import Namespace
from tiering.policies.lru import LRUCachePolicy
from tiering.policies.policy import EvictionPolicy
from tiering.registry import (
    InstalledPlugin,
    SecondaryTierFactory,
    installed_policies,
    installed_tiers,
    register_policy,
    register_tier,
    resolve_policy,
    resolve_tier,
)
from tiering.tier import API_VERSION, Tier, TierConfig, TierContext

if TYPE_CHECKING:
    from conftest import Site


def a_context(name: str) -> TierContext:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("construction does no I/O")

    return TierContext(name, 4096, Namespace("model", 4096), lambda: 0.0, never, never)  # type: ignore[arg-type]


class CodeTier(Tier):
    tier_type = "by-code"

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return [False] * len(keys)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)


def test_one_plugin_is_loaded_and_no_other(site: Site) -> None:
    wanted = site.install_tier("good")
    other = site.install_tier("other")
    broken = site.install("broken", "raise RuntimeError('broken at import')")
    tier = resolve_tier("good")
    assert (tier.tier_type, tier.__module__) == ("good", wanted)
    assert not {other, broken} & sys.modules.keys()
    assert resolve_tier("good") is tier


def test_listing_imports_nothing(site: Site) -> None:
    module = site.install("broken", "raise RuntimeError('broken at import')")
    assert InstalledPlugin("broken", "broken-plugin", "1.2", module) in installed_tiers()
    assert module not in sys.modules


def test_built_in_policies_come_through_the_same_door() -> None:
    names = [plugin.name for plugin in installed_policies() if plugin.distribution == "kv-tiering"]
    assert names == ["arc", "arc_paper", "lru"]
    assert [resolve_policy(name).policy_name for name in names] == names


def test_a_policy_plugin(site: Site) -> None:
    source = """
from tiering.policies.lru import LRUCachePolicy
from tiering.policies.policy import hookimpl

class MyPolicy(LRUCachePolicy):
    policy_name = "mine"

@hookimpl
def tiering_register_policy():
    return MyPolicy
"""
    site.install("mine", source, group="tiering.policies")
    assert resolve_policy("mine").policy_name == "mine"
    assert parse_config({"cpu_bytes_to_use": 1, "eviction_policy": "mine"}, environ={}).eviction_policy == "mine"


def test_an_unknown_name(site: Site) -> None:
    site.install_tier("redux")
    with pytest.raises(PluginError) as caught:
        resolve_tier("Redox")
    message = str(caught.value)
    assert message.startswith("unknown tier 'Redox', did you mean 'redux'; installed: ")
    assert "redux" in message.partition("installed: ")[2]


def test_nothing_is_recommended_that_this_project_does_not_ship() -> None:
    with pytest.raises(PluginError, match=r"^unknown tier 'redis'") as caught:
        resolve_tier("redis")
    assert "pip" not in str(caught.value)


def test_two_distributions_with_one_name(site: Site) -> None:
    first = site.install_tier("twin", distribution="first-plugin")
    second = site.install_tier("twin", distribution="second-plugin")
    message = "the tier 'twin' is claimed by distribution 'first-plugin' and by distribution 'second-plugin'; keep one"
    with pytest.raises(PluginError, match=f"^{message}$"):
        resolve_tier("twin")
    assert not {first, second} & sys.modules.keys()


NO_HOOK = "from tiering.tier import Tier\n"
MISSPELT = """
from tiering.tier import hookimpl

@hookimpl
def tiering_register_teir():
    return None
"""
NOT_A_TIER = """
from tiering.tier import hookimpl

@hookimpl
def tiering_register_tier():
    return dict
"""
ABSTRACT = """
from tiering.tier import Tier, hookimpl

class Half(Tier):
    tier_type = "bad"

    async def lookup(self, keys):
        return []

@hookimpl
def tiering_register_tier():
    return Half
"""


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import a_module_that_is_not_there", "needs the module 'a_module_that_is_not_there', which is not installed"),
        ("raise SystemExit('not on this machine')", "cannot be loaded: SystemExit: not on this machine"),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("def broken(:", "cannot be loaded: SyntaxError: "),
        (NO_HOOK, "brings no class: 'bad_plugin_module' has no function tiering_register_tier with @hookimpl"),
        (MISSPELT, "cannot be loaded: PluginValidationError: unknown hook 'tiering_register_teir'"),
        (NOT_A_TIER, "is <class 'dict'>, but must be a class derived from tiering.tier.Tier"),
        (ABSTRACT, "lacks load, store, which tiering.tier.Tier asks for"),
    ],
)
def test_a_plugin_that_does_not_fit(site: Site, source: str, complaint: str) -> None:
    site.install("bad", source)
    with pytest.raises(PluginError) as caught:
        resolve_tier("bad")
    assert str(caught.value).startswith(f"tier 'bad' of distribution 'bad-plugin' {complaint}")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("tier_type = 'worse'", "has tier_type = 'worse', but must have 'bad'"),
        (f"api_version = {API_VERSION + 1}", f"is made for version {API_VERSION + 1} of the contract, but this is"),
        ("api_version = 'new'", "is made for version 'new' of the contract"),
        ("config_type = dict", "has config_type = <class 'dict'>, but must derive it from TierConfig"),
    ],
)
def test_a_class_that_does_not_fit(site: Site, body: str, complaint: str) -> None:
    site.install_tier("bad", body)
    with pytest.raises(PluginError) as caught:
        resolve_tier("bad")
    assert str(caught.value).startswith(f"tier 'bad' of distribution 'bad-plugin' {complaint}")


@pytest.mark.parametrize(
    "body",
    [
        "def __init__(self, config, context):\n        self.arguments = (config, context)",
        "def __init__(self, config, context, tracer=None):\n        self.arguments = (config, context)",
        "def __init__(self, *arguments):\n        self.arguments = arguments",
        f"api_version = {API_VERSION - 1}\n    def __init__(self, config, context): self.arguments = (config, context)",
    ],
    ids=["documented", "optional extra", "any", "older version"],
)
def test_tc_86_plugins_of_an_older_interface_work(site: Site, body: str) -> None:
    site.install_tier("old", body)
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "old"}]}, environ={})
    tier_config, context = config.secondary_tier_configs[0], a_context("old")
    tier = SecondaryTierFactory.create_secondary_tier(tier_config, context)
    assert tier.arguments == (tier_config, context)  # type: ignore[attr-defined]
    assert tier.describe() == ""


@pytest.mark.parametrize(
    ("parameters", "argument"), [("config, context, tracer", "tracer"), ("config, context, *, scope", "scope")]
)
def test_tc_86_an_extra_required_argument_is_refused(site: Site, parameters: str, argument: str) -> None:
    site.install_tier("eager", f"def __init__(self, {parameters}): pass")
    with pytest.raises(PluginError, match=rf"constructed with \(config, context\): missing .* argument: '{argument}'"):
        resolve_tier("eager")


def test_a_plugin_error_in_a_configuration_has_file_and_line(site: Site, tmp_path: Path) -> None:
    site.install("bad", "1 / 0")
    file = tmp_path / "tiering.yaml"
    file.write_text("cpu_bytes_to_use: 1\nsecondary_tier_configs:\n  - name: x\n    type: bad\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ={})
    expected = (
        f"{file}:4: secondary_tier_configs[0].type: 'bad': tier 'bad' of distribution 'bad-plugin' cannot be loaded"
    )
    assert str(caught.value).startswith(expected)


def test_registration_by_code() -> None:
    register_tier(CodeTier)
    register_tier(CodeTier)
    assert resolve_tier("by-code") is CodeTier
    config = parse_config({"cpu_bytes_to_use": 1, "secondary_tiers": [{"type": "by-code"}]}, environ={})
    tier = SecondaryTierFactory.create_secondary_tier(config.secondary_tier_configs[0], a_context("by-code"))
    assert type(tier) is CodeTier


def test_a_second_class_of_one_name_is_refused() -> None:
    class Usurper(CodeTier):
        pass

    SecondaryTierFactory.register_tier(CodeTier)
    with pytest.raises(PluginError, match=r"'by-code': .*CodeTier is registered already, .*Usurper is refused"):
        SecondaryTierFactory.register_tier(Usurper)
    assert resolve_tier("by-code") is CodeTier


def test_code_and_distribution_with_one_name(site: Site) -> None:
    class Shadow(CodeTier):
        tier_type = "shadow"

    site.install_tier("shadow")
    register_tier(Shadow)
    with pytest.raises(
        PluginError, match=r"claimed by distribution 'shadow-plugin' and by .*Shadow, registered by code"
    ):
        resolve_tier("shadow")


def test_registration_checks_at_once() -> None:
    class Nameless(EvictionPolicy):
        pass

    class Extra(LRUCachePolicy):
        policy_name = "extra"

        def __init__(self, rows: object, size: int) -> None:
            raise NotImplementedError

    with pytest.raises(PluginError, match="its policy_name must name it"):
        register_policy(Nameless)
    with pytest.raises(PluginError, match=r"constructed with \(rows\): missing a required argument: 'size'"):
        register_policy(Extra)
    with pytest.raises(PluginError, match="unknown eviction policy 'extra'"):
        resolve_policy("extra")


def test_a_configuration_of_the_wrong_class_is_refused(site: Site) -> None:
    site.install_tier("picky", "config_type = type('PickyConfig', (TierConfig,), {})")
    with pytest.raises(ConfigError, match=r"tier 'p' needs its configuration as .*PickyConfig, not .*TierConfig"):
        SecondaryTierFactory.create_secondary_tier(TierConfig(type="picky"), a_context("p"))


def test_every_hook_is_specified() -> None:
    specified = {name for name in hookspecs.__all__ if hasattr(getattr(hookspecs, name), "tiering_spec")}
    assert specified == {"tiering_register_tier", "tiering_register_policy"}
