"""TC-87: which plugins a child process finds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import pytest

from tiering.errors import PluginError
from tiering.keys import OffloadKey
from tiering.policies.lru import LRUCachePolicy
from tiering.registry import register_policy, register_tier, resolve_policy, resolve_tier
from tiering.tier import Tier

if TYPE_CHECKING:
    from conftest import Site

COUNTED = """
import os
from tiering.tier import Tier, hookimpl

with open({log!r}, "a") as log:
    log.write(f"{{os.getpid()}}\\n")

class Counted(Tier):
    tier_type = "counted"
    async def lookup(self, keys): return []
    async def store(self, keys, rows): return []
    async def load(self, keys, rows): return []

@hookimpl
def tiering_register_tier():
    return Counted
"""


class CodeTier(Tier):
    tier_type = "child-by-code"

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        return [False] * len(keys)

    async def store(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)

    async def load(self, keys: Sequence[OffloadKey], rows: Sequence[memoryview]) -> list[bool]:
        return [False] * len(keys)


class CodePolicy(LRUCachePolicy):
    policy_name = "child-by-code"


def resolved(resolve: Callable[[str], type], name: str) -> str:
    try:
        return resolve(name).__name__
    except PluginError as error:
        return str(error)


def look_up(answers: Connection) -> None:
    for _ in range(2):
        found = [resolved(resolve_tier, "counted"), resolved(resolve_tier, "child-by-code")]
        found += [resolved(resolve_policy, "lru"), resolved(resolve_policy, "child-by-code")]
    answers.send(found)


def answer_of_child(method: str) -> list[str]:
    context = multiprocessing.get_context(method)
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=look_up, args=(sending,))
    child.start()
    sending.close()
    try:
        answer: list[str] = receiving.recv()
    finally:
        child.join()
        receiving.close()
    return answer


@pytest.mark.parametrize("used_before", [True, False], ids=["used before", "not used before"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tc_87_plugins_in_child_processes(site: Site, method: str, used_before: bool) -> None:
    log = site.folder / "imports"
    log.touch()
    site.install("counted", COUNTED.format(log=str(log)))
    register_tier(CodeTier)
    register_policy(CodePolicy)
    if used_before:
        assert resolve_tier("counted").tier_type == "counted"

    installed_tier, code_tier, built_in, code_policy = answer_of_child(method)

    assert (installed_tier, built_in) == ("Counted", "LRUCachePolicy")
    if method == "fork":
        assert (code_tier, code_policy) == ("CodeTier", "CodePolicy")
    else:
        assert code_tier.startswith("unknown tier 'child-by-code'")
        assert code_tier.endswith("; registered by code in this process: none")
        assert code_policy.startswith("unknown eviction policy 'child-by-code'")
        assert "installed: arc, arc_paper, lru" in code_policy
    imports = log.read_text().split()
    assert len(imports) == len(set(imports)), "a process imported the plugin twice"
    assert len(imports) == (1 if method == "fork" or not used_before else 2)
