"""Who may import whom, what files may be called, and that `__all__` tells the truth; read from the source."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("tiering", "tiers", "examples", "benchmarks", "plugins")

CONTROL_PATH = (
    "tiering.offloading_manager",
    "tiering.manager",
    "tiering.primary",
    "tiering.reuse_filter",
    "tiering.policies",
    "tiering.lookups",
    "tiering.promotion",
    "tiering.cascade",
    "tiering.rows",
    "tiering.row_table",
    "tiering.questions",
    "tiering.attached_tier",
    "tiering.open_jobs",
    "tiering.breaker",
)
DATA_PATH = ("tiering.region", "tiering.device")
OFFERED_TO_TIERS = (
    "tiering.tier",
    "tiering.naming",
    "tiering.errors",
    "tiering.keys",
    "tiering.inventory",
    "tiering.quantities",
    "tiering.testing",
)


@dataclass(frozen=True)
class OnlyIn:
    """``imported`` may be imported nowhere else in the project than in ``importers``."""

    imported: tuple[str, ...]
    importers: tuple[str, ...]
    reason: str

    def forbids(self, importer: str, imported: str) -> bool:
        return under(imported, self.imported) and not under(importer, self.importers)


@dataclass(frozen=True)
class Never:
    """``importers`` may not import ``imported``, except for ``allowed``."""

    importers: tuple[str, ...]
    imported: tuple[str, ...]
    reason: str
    allowed: tuple[str, ...] = ()

    def forbids(self, importer: str, imported: str) -> bool:
        return under(importer, self.importers) and under(imported, self.imported) and not under(imported, self.allowed)


RULES: tuple[OnlyIn | Never, ...] = (
    Never(CONTROL_PATH, DATA_PATH, "the control path decides and never touches a byte"),
    Never(DATA_PATH, CONTROL_PATH, "the data path moves bytes and decides nothing"),
    Never(("tiering",), ("tiers",), "built-in tiers come in through the door, like everybody else's"),
    Never(("tiering", "tiers"), ("vllm",), "the core knows no engine"),
    Never(("tiers",), ("tiering",), "tiers use what is meant for them", allowed=OFFERED_TO_TIERS),
    OnlyIn(
        ("torch",),
        ("tiering.device", "tiering.region", "tiering.testing", "tiering.replay", "examples", "benchmarks", "plugins"),
        "torch is slow to load and only moves bytes",
    ),
    OnlyIn(("pluggy",), ("tiering.hookspecs", "tiering.hook_marker", "tiering.registry"), "one door for plugins"),
    OnlyIn(
        ("asyncio", "threading", "concurrent"),
        (
            "tiering.jobs",
            "tiering.job_loop",
            "tiering.lent_rows",
            "tiering.isolation",
            "tiering.device",
            "tiering.region.populate",
            "tiering.replay",
            "tiering.testing",
            "tiers",
            "benchmarks",
            "plugins",
        ),
        "jobs.py and its threads in job_loop.py are the only thread boundary; isolation/ runs on them",
    ),
    OnlyIn(("fsspec", "s3fs", "obstore"), ("tiers.s3", "benchmarks"), "an extra of the object tier"),
    OnlyIn(("aiofiles",), ("tiers.disk", "benchmarks"), "the disk tier's way to files"),
    OnlyIn(("yaml",), ("tiering.config_yaml", "tiering.cli"), "one reader of YAML, which knows lines"),
    OnlyIn(
        ("typer", "rich"), ("tiering.cli", "tiering.replay", "examples", "benchmarks"), "output is for the command line"
    ),
)

CALLABLES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

MEANINGLESS_NAMES = {"utils", "common", "helpers", "base", "misc"}

NOT_LOADED_BY_IMPORT = ("torch", "s3fs", "fsspec", "vllm", "yaml", "typer", "aiofiles")


def under(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def source_files() -> list[Path]:
    return sorted(file for folder in SOURCES for file in (ROOT / folder).rglob("*.py") if not is_test(file))


def is_test(file: Path) -> bool:
    return "tests" in file.relative_to(ROOT).parts


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imports_of(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and full name of every import, also those inside functions and for type checkers only."""
    package = module_name(file).split(".") if file.name == "__init__.py" else module_name(file).split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            # "from tiering import primary" imports tiering.primary.
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def violations(file: Path, tree: ast.Module) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{line} imports {imported}: {rule.reason}"
        for line, imported in imports_of(file, tree)
        for rule in RULES
        if rule.forbids(module_name(file), imported)
    ]


def test_imports_follow_the_rules() -> None:
    found = [violation for file in source_files() for violation in violations(file, tree_of(file))]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tiering/primary.py", "from tiering.region import RegionLayout"),
        ("tiering/policies/lru.py", "def late():\n    from ..device import planner"),
        ("tiering/region/layout.py", "from tiering import primary"),
        ("tiering/registry.py", "import tiers.disk"),
        ("tiering/device/cuda.py", "import vllm"),
        ("tiers/disk/tier.py", "from tiering.jobs import TierWorker"),
        ("tiers/disk/tier.py", "import tiering"),
        ("tiering/manager.py", "if TYPE_CHECKING:\n    import torch"),
        ("tiering/tier.py", "from pluggy import HookimplMarker"),
        ("tiering/region/opening.py", "import concurrent.futures"),
        ("tiers/disk/tier.py", "import s3fs"),
        ("tiers/s3/tier.py", "import aiofiles.os"),
        ("tiering/config_file.py", "import yaml"),
        ("tiering/manager.py", "from rich.console import Console"),
    ],
)
def test_the_rules_find_what_they_forbid(module: str, source: str) -> None:
    assert len(violations(ROOT / module, ast.parse(source))) == 1


def test_every_rule_speaks_of_modules_that_exist() -> None:
    modules = {module_name(file) for file in source_files()}
    named = {name for rule in RULES for name in (*rule.importers, *rule.imported) if name.startswith("tiering.")}
    absent = sorted(name for name in named if not any(under(module, (name,)) for module in modules))
    assert not absent, f"rules name modules that are gone: {absent}"


def test_file_names_say_what_is_inside() -> None:
    files = source_files() + list((ROOT / "tests").rglob("*.py"))
    found = [str(file.relative_to(ROOT)) for file in files if file.stem in MEANINGLESS_NAMES]
    assert not found, f"names that could mean anything: {found}"


def top_level_definitions(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, CALLABLES):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def must_be_listed(name: str, tree: ast.Module) -> bool:
    """Say whether ``name`` is a public class, function or constant; a type alias may serve its module alone."""
    assigned = not any(isinstance(node, CALLABLES) and node.name == name for node in tree.body)
    return not name.startswith("_") and not (assigned and (not name.isupper() or len(name) == 1))


def imported_names(tree: ast.Module) -> set[str]:
    """Name what is imported, at once or (behind `if TYPE_CHECKING`) when it is first used."""
    lazily = [inner for node in tree.body if isinstance(node, ast.If) for inner in node.body]
    return {
        alias.asname or alias.name
        for node in tree.body + lazily
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def declared_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


@pytest.mark.parametrize("package", ["tiering", "tiers"])
def test_all_lists_what_is_public(package: str) -> None:
    found = []
    for file in (ROOT / package).rglob("*.py"):
        tree = tree_of(file)
        defined, declared = top_level_definitions(tree), set(declared_names(tree))
        unlisted = sorted(name for name in defined - declared if must_be_listed(name, tree))
        found += [f"{file.relative_to(ROOT)}: {name} is public but not in __all__" for name in unlisted]
        unknown = declared - defined - imported_names(tree)
        found += [f"{file.relative_to(ROOT)}: {name} is in __all__ but does not exist" for name in sorted(unknown)]
    assert not found, "\n" + "\n".join(found)


def test_importing_the_core_loads_nothing_heavy() -> None:
    program = "import sys, tiering, tiering.manager, tiering.tier; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(NOT_LOADED_BY_IMPORT) & set(done.stdout.split())
