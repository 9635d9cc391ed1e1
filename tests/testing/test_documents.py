"""What the documents say about tests: named ones exist, shown ones run."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tiering.testing import Ability

ROOT = Path(__file__).parents[2]

pytest_plugins = ["pytester"]


def block_with(document: Path, words: str) -> str:
    """Return the one Python block of a document that contains these words."""
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = [block for block in blocks if words in block]
    return str(found)


@cache
def functions_of(file: Path) -> set[str]:
    if not file.exists():
        return set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_proves_a_case_exists() -> None:
    text = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/.-]+\.py)::(\w+)`", text)
    assert len(named) > 100
    missing = [f"{file}::{name}" for file, name in named if name not in functions_of(ROOT / file)]
    assert not missing
    cases = [line for line in text.splitlines() if line.startswith("| TC-")]
    assert len({line.split("|")[1] for line in cases}) == len(cases) > 60
    assert all("::test_" in line for line in cases)


def test_every_test_that_names_a_case_is_listed() -> None:
    listed = (ROOT / "docs/cases.md").read_text(encoding="utf-8")
    cases = set(re.findall(r"^\| TC-(\d+) \|", listed, re.MULTILINE))
    named = {
        number
        for file in (ROOT / "tests").rglob("test_*.py")
        for number in re.findall(r"def test_tc_(\d+)_", file.read_text(encoding="utf-8"))
    }
    assert named <= cases


def test_the_abilities_are_those_of_the_document() -> None:
    text = (ROOT / "docs/testing-a-tier.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `([A-Z_]+)` \| (.+) \|$", text, re.MULTILINE)) == {
        ability.name: ability.value for ability in Ability
    }


def test_the_worked_example_passes(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(block_with(ROOT / "docs/testing-a-tier.md", "pytest_plugins"))
    pytester.makepyfile(
        folder_tier=block_with(ROOT / "tiers/README.md", "class FolderTier"),
        test_folder_tier=block_with(ROOT / "docs/testing-a-tier.md", "class TestFolderTier"),
    )
    pytester.syspathinsert()
    ran = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    outcomes = ran.parseoutcomes()
    assert outcomes.get("failed", 0) == outcomes.get("errors", 0) == 0, ran.stdout.str()
    assert outcomes["passed"] > 20
    assert outcomes["skipped"] > 5


def test_a_tier_that_breaks_a_rule_gets_a_readable_failure(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(block_with(ROOT / "docs/testing-a-tier.md", "pytest_plugins"))
    pytester.makepyfile(
        folder_tier=block_with(ROOT / "tiers/README.md", "class FolderTier").replace("and not file.read(1)", ""),
        test_folder_tier=block_with(ROOT / "docs/testing-a-tier.md", "class TestFolderTier"),
    )
    pytester.syspathinsert()
    ran = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")
    ran.assert_outcomes(failed=1, passed=ran.parseoutcomes()["passed"], skipped=ran.parseoutcomes()["skipped"])
    ran.stdout.fnmatch_lines(["*assert *True* == *False*", "FAILED *::test_an_object_of_the_wrong_length_is_a_miss*"])
