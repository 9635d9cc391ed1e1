from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TIER = """
from tiering.tier import Tier, TierConfig, hookimpl


class {cls}(Tier):
    tier_type = {name!r}
    {body}

    async def lookup(self, keys):
        return [False] * len(keys)

    async def store(self, keys, rows):
        return [False] * len(keys)

    async def load(self, keys, rows):
        return [False] * len(keys)


@hookimpl
def tiering_register_tier():
    return {cls}
"""


class Site:
    """A folder on the module path in which distributions look installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, source: str, *, distribution: str = "", group: str = "tiering.tiers") -> str:
        """Add a distribution whose entry point ``name`` is a module holding ``source``; return the module's name."""
        distribution = distribution or f"{name}-plugin"
        module = f"{distribution.replace('-', '_')}_module"
        info = self.folder / f"{distribution.replace('-', '_')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
        (self.folder / f"{module}.py").write_text(source)
        return module

    def install_tier(self, name: str, body: str = "pass", *, distribution: str = "") -> str:
        """Add a distribution with a complete tier; ``body`` is put into its class."""
        return self.install(name, TIER.format(cls="PluginTier", name=name, body=body), distribution=distribution)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for module in [name for name in sys.modules.keys() - before if name.endswith("_plugin_module")]:
        del sys.modules[module]
