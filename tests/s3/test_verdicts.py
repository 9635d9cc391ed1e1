"""What is believed about which chunks are there."""

from __future__ import annotations

from object_harness import Clock, key_of

from tiers.s3.config import VerdictsConfig
from tiers.s3.verdicts import Verdict, Verdicts


def verdicts(clock: Clock | None = None, **settings: object) -> Verdicts:
    defaults = {"positive_ttl": 10, "negative_ttl": 5}
    return Verdicts(VerdictsConfig.model_validate(defaults | settings), clock or Clock())


def test_each_kind_expires_in_its_time() -> None:
    clock = Clock()
    memory = verdicts(clock)
    memory.note(key_of(1), Verdict.PRESENT)
    memory.note(key_of(2), Verdict.ABSENT)
    memory.note(key_of(3), Verdict.SPOILT)
    clock.now += 4.9
    assert [memory.get(key_of(n)) for n in (1, 2, 3, 4)] == [Verdict.PRESENT, Verdict.ABSENT, Verdict.SPOILT, None]
    clock.now += 0.1
    assert [memory.get(key_of(n)) for n in (1, 2, 3)] == [Verdict.PRESENT, None, Verdict.SPOILT]
    clock.now += 5
    assert [memory.get(key_of(n)) for n in (1, 2, 3)] == [None, None, None]


def test_absence_is_not_remembered_by_default() -> None:
    memory = Verdicts(VerdictsConfig(), Clock())
    assert memory.note(key_of(1), Verdict.ABSENT) is Verdict.ABSENT
    assert memory.get(key_of(1)) is None


def test_a_question_begun_earlier_never_overrules() -> None:
    memory = verdicts(negative_ttl=0)
    begun = memory.begin()
    memory.note(key_of(1), Verdict.PRESENT)
    assert memory.note(key_of(1), Verdict.ABSENT, begun) is Verdict.PRESENT
    assert memory.get(key_of(1)) is Verdict.PRESENT
    begun = memory.begin()
    assert memory.note(key_of(1), Verdict.ABSENT, begun) is Verdict.ABSENT
    assert memory.get(key_of(1)) is None


def test_the_latest_ones_are_kept() -> None:
    memory = verdicts(max_entries=100)
    for number in range(1000):
        memory.note(key_of(number), Verdict.PRESENT)
        memory.note(key_of(0), Verdict.PRESENT)
    assert len(memory) == 100
    assert memory.get(key_of(0)) is memory.get(key_of(999)) is Verdict.PRESENT
    assert memory.get(key_of(900)) is None
