from __future__ import annotations

import gzip
import itertools
import json
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest

from tiering.errors import TraceError
from tiering.keys import make_offload_key
from tiering.replay.generator import generate_trace
from tiering.replay.trace import TraceRequest, read_trace, to_json_line

REQUESTS = list(itertools.islice(generate_trace(1), 30))
TEXT = "".join(to_json_line(request) + "\n" for request in REQUESTS).encode()
GOOD = {"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}

Compress = Callable[[bytes], bytes]


def refusal(path: Path) -> str:
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    return str(caught.value)


@pytest.mark.parametrize(("suffix", "compress"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_what_was_written_is_read(tmp_path: Path, suffix: str, compress: Compress) -> None:
    file = tmp_path / f"trace.jsonl{suffix}"
    file.write_bytes(compress(TEXT))
    assert list(read_trace(file)) == REQUESTS


def test_blank_lines_and_unknown_fields_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("\n  \n" + json.dumps(GOOD | {"user": "x"}))
    assert list(read_trace(file)) == [TraceRequest(0, 700, 3, (1, 2))]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ('{"timestamp": 1,}', "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"timestamp": ' + "9" * 5000 + "}", "is not JSON"),
        ("[1, 2]", "is [1, 2]; allowed: a JSON object"),
        ("null", "is missing; allowed: a JSON object"),
        ({"hash_ids": None}, "hash_ids is missing; allowed: a list of integers"),
        ({"hash_ids": "1 2"}, 'hash_ids is "1 2"; allowed'),
        ({"hash_ids": [1, "2"]}, 'hash_ids is [1, "2"]; allowed'),
        ({"hash_ids": [1, 2.0]}, "hash_ids is [1, 2.0]; allowed"),
        ({"hash_ids": [True]}, "hash_ids is [true]; allowed"),
        ({"hash_ids": [-1]}, "hash_ids is [-1]; allowed"),
        ({"hash_ids": [2**64]}, "hash_ids is [18446744073709551616]; allowed"),
        ({"hash_ids": [7, 8, 7]}, "hash_ids holds 7 more than once; allowed: distinct ids"),
        ({"timestamp": -1}, "timestamp is -1; allowed: an integer of at least 0"),
        ({"timestamp": 0.5}, "timestamp is 0.5; allowed"),
        ({"input_length": None}, "input_length is missing; allowed"),
        ({"input_length": "700"}, 'input_length is "700"; allowed'),
        ({"output_length": True}, "output_length is true; allowed"),
    ],
)
def test_a_wrong_line_is_named_and_those_before_it_are_read(
    tmp_path: Path, line: str | bytes | dict[str, object], problem: str
) -> None:
    if isinstance(line, dict):
        line = json.dumps({name: value for name, value in (GOOD | line).items() if value is not None})
    file = tmp_path / "trace.jsonl"
    wrong = line if isinstance(line, bytes) else line.encode()
    file.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + wrong + b"\n" + TEXT)
    requests = read_trace(file)
    assert next(requests) == TraceRequest(0, 700, 3, (1, 2))
    with pytest.raises(TraceError) as caught:
        next(requests)
    assert str(caught.value).startswith(f"{file}:3: {problem}")


def test_a_long_value_is_shortened(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps(GOOD | {"hash_ids": ["x" * 1000]}))
    assert len(refusal(file)) < len(str(file)) + 150


def test_missing_file_and_directory(tmp_path: Path) -> None:
    missing = tmp_path / "missing.jsonl.xz"
    assert refusal(missing) == f"{missing}: cannot be read: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_truncated_and_damaged_archives(tmp_path: Path, suffix: str, compress: Compress) -> None:
    file = tmp_path / f"trace.jsonl{suffix}"
    data = compress(TEXT)
    for damaged in (data[:-20], data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :], TEXT):
        file.write_bytes(damaged)
        message = refusal(file)
        assert message.startswith(str(file))
        assert "cannot be read" in message or "is not JSON" in message


def test_an_empty_file_holds_no_requests(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.touch()
    assert list(read_trace(file)) == []


def test_keys_are_made_of_the_ids() -> None:
    request = TraceRequest(0, 700, 3, (1, 2**64 - 1))
    assert request.offload_keys() == [make_offload_key(bytes(7) + b"\1", 0), make_offload_key(b"\xff" * 8, 0)]
