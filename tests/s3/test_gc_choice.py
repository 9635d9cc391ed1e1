"""What ``tiering gc objects`` would remove of what lies in a store."""

from __future__ import annotations

import pytest

from tiering.cli.gc_choice import Bounds, choose
from tiering.inventory import StoredKind, StoredObject

NOW = 1_000_000.0


def chunk(number: int, age: float, num_bytes: int = 10, namespace: str = "a") -> StoredObject:
    return StoredObject(StoredKind.CHUNK, namespace, f"{namespace}/{number}", num_bytes, NOW - age)


def leftover(age: float, namespace: str = "a") -> StoredObject:
    return StoredObject(StoredKind.LEFTOVER, namespace, f"{namespace}/unfinished-{age}", 10, NOW - age)


def description(age: float, namespace: str = "a") -> StoredObject:
    return StoredObject(StoredKind.DESCRIPTION, namespace, f"{namespace}/namespace.json", 10, NOW - age)


CHUNKS = [chunk(age, age) for age in (40, 10, 30, 20)]


@pytest.mark.parametrize(
    ("bounds", "ages"),
    [
        (Bounds(), []),
        (Bounds(older_than=30), [40, 30]),
        (Bounds(older_than=0), [40, 30, 20, 10]),
        (Bounds(max_bytes=40), []),
        (Bounds(max_bytes=39), [40]),
        (Bounds(max_bytes=20), [40, 30]),
        (Bounds(max_bytes=0), [40, 30, 20, 10]),
        (Bounds(max_bytes=35, older_than=30), [40, 30]),
        (Bounds(max_bytes=5, older_than=30), [40, 30, 20, 10]),
        (Bounds(older_than=0, namespaces=frozenset({"b"})), []),
    ],
)
def test_chunks_go_by_age_and_then_until_the_rest_fits(bounds: Bounds, ages: list[int]) -> None:
    assert choose(CHUNKS, bounds, NOW) == [chunk(age, age) for age in ages]


def test_other_namespaces_neither_count_nor_go() -> None:
    others = [chunk(number, 100, namespace="b") for number in range(10)]
    chosen = choose(CHUNKS + others, Bounds(max_bytes=30, namespaces=frozenset({"a"})), NOW)
    assert chosen == [chunk(40, 40)]


def test_what_has_no_age_is_never_old() -> None:
    ageless = StoredObject(StoredKind.CHUNK, "a", "a/0", 10, float("inf"))
    assert choose([ageless, chunk(1, 1)], Bounds(older_than=0), NOW) == [chunk(1, 1)]
    assert choose([ageless, chunk(1, 1)], Bounds(max_bytes=10), NOW) == [chunk(1, 1)]


def test_unfinished_writes_go_by_an_age_of_their_own() -> None:
    found = [leftover(50), leftover(5), chunk(1, 70)]
    assert choose(found, Bounds(leftovers_older_than=50), NOW) == [leftover(50)]
    assert choose(found, Bounds(older_than=0), NOW) == [chunk(1, 70)]


@pytest.mark.parametrize(
    ("beside", "goes"),
    [
        ([chunk(1, 40)], True),
        ([], True),
        ([chunk(1, 40), chunk(2, 1)], False),
        ([leftover(1)], False),
        ([chunk(1, 1, namespace="b")], True),
    ],
)
def test_a_description_goes_with_the_last_object_of_its_namespace(beside: list[StoredObject], goes: bool) -> None:
    chosen = choose([description(35), *beside], Bounds(older_than=30, leftovers_older_than=30), NOW)
    assert (description(35) in chosen) == goes


def test_a_young_description_stays() -> None:
    assert choose([description(29)], Bounds(older_than=30, leftovers_older_than=30), NOW) == []
    assert choose([description(9999)], Bounds(max_bytes=0), NOW) == []
