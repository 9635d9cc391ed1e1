"""The conformance suite: good tiers pass every rule, and each bad one fails at the rule that it breaks and no other."""

from __future__ import annotations

import inspect
import os
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
from bad_tiers import BAD_TIERS, LEFT_OPEN
from shelf_tier import ShelfTests, ShelfTier

from tiering.keys import OffloadKey
from tiering.testing import Ability, MemoryTier, MemoryTierConfig, TierTests
from tiering.tier import Tier, TierContext

RULES = sorted(name for name, _ in inspect.getmembers(TierTests, inspect.isfunction) if name.startswith("test_"))


class TestShelfTier(ShelfTests):
    """The good one that the bad ones are made of."""


class TestMemoryTier(TierTests):
    abilities = frozenset({Ability.ANY_LENGTH, Ability.EVICTS, Ability.FOLLOWS_RECENCY, Ability.DELETES, Ability.LISTS})

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        return MemoryTier(MemoryTierConfig(max_chunks=max_chunks), context)

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        assert isinstance(tier, MemoryTier)
        return tier.objects.get(key)

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        assert isinstance(tier, MemoryTier)
        tier.objects[key] = payload

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        assert isinstance(tier, MemoryTier)
        del tier.objects[key]


@pytest.fixture
def left_open() -> Iterator[None]:
    yield
    while LEFT_OPEN:
        os.close(LEFT_OPEN.pop())


def failures(kind: type[ShelfTier], directory: Path) -> set[str]:
    """Run every rule against a tier; return the names of those that do not hold."""
    suite = type(f"{kind.__name__}Tests", (ShelfTests,), {"kind": kind})()
    failed = set()
    for name in RULES:
        place = directory / name
        place.mkdir()
        suite.watches_resources = name == "test_nothing_is_left_behind"  # looking takes its time
        try:
            getattr(suite, name)(place)
        except Exception:
            failed.add(name)
    return failed


def test_every_rule_has_a_tier_that_breaks_it() -> None:
    assert sorted(BAD_TIERS) == RULES


@pytest.mark.parametrize("test", RULES)
def test_a_bad_tier_fails_at_its_rule_and_no_other(test: str, tmp_path: Path, left_open: None) -> None:
    assert failures(BAD_TIERS[test], tmp_path) == {test}


def test_rules_about_abilities_that_are_not_declared_are_skipped(tmp_path: Path) -> None:
    plain = type("PlainTests", (ShelfTests,), {"abilities": frozenset()})()
    skipped = set()
    for name in RULES:
        place = tmp_path / name
        place.mkdir()
        try:
            getattr(plain, name)(place)
        except unittest.SkipTest:
            skipped.add(name)
    assert len(skipped) == 13
    assert "test_a_flipped_bit_is_a_miss" in skipped
