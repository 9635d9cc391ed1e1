from __future__ import annotations

import hashlib
import itertools

import pytest

from tiering.replay.generator import generate_trace
from tiering.replay.trace import to_json_line


@pytest.mark.parametrize(
    ("num_requests", "sha256"),
    [
        (500, "fbd52c8a2fe39fea172447136e3183b9f064a5ab4088cf4e8c5559bf9b9f1699"),
        (5000, "68bb718931ac7cbcfccee7cdbe63b1e8b544e444bf2315bce4e89bab29effac1"),
    ],
)
def test_the_same_bytes_on_every_machine(num_requests: int, sha256: str) -> None:
    lines = (to_json_line(request) + "\n" for request in itertools.islice(generate_trace(1), num_requests))
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == sha256


def test_another_seed_is_another_trace() -> None:
    first, second = (list(itertools.islice(generate_trace(seed), 20)) for seed in (1, 2))
    assert first != second


def test_ids_name_a_block_with_everything_before_it() -> None:
    predecessor: dict[int, int | None] = {}
    for request in itertools.islice(generate_trace(3), 1000):
        for before, hash_id in zip((None, *request.hash_ids), request.hash_ids, strict=False):
            # Tools and documents begin with a block of their own or with the root; all else has one predecessor.
            assert predecessor.setdefault(hash_id, before) == before
