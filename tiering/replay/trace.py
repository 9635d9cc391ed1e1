"""Request traces in the Mooncake format, one JSON object per line.

``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), ``hash_ids``: one id per block of the prompt. Ids
are chained, so that an id names its block together with everything before it.
"""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from tiering.errors import TraceError
from tiering.keys import OffloadKey, make_offload_key

__all__ = ["TraceRequest", "read_trace", "to_json_line"]


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace.

    Attributes:
        timestamp: arrival, in milliseconds.
        input_length: tokens of the prompt.
        output_length: tokens generated.
        hash_ids: one id per block of the prompt, a partly filled last one included.
    """

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]

    def offload_keys(self, num_groups: int = 1) -> list[OffloadKey]:
        """Return the prompt's keys, block after block, each block once for every KV-cache group."""
        hashes = [hash_id.to_bytes(8, "big") for hash_id in self.hash_ids]
        return [make_offload_key(block_hash, group) for block_hash in hashes for group in range(num_groups)]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a file; names ending in ``.gz`` or ``.xz`` are decompressed.

    Raises:
        TraceError: the file cannot be read, or a line is not a request; the message names file and line. Raised when
            the line is reached.
    """
    number = 0
    try:
        with _open(path) as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield _parse(line)
    except TraceError as error:
        raise TraceError(f"{path}:{number}: {error}") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        place = f"{path}:{number + 1}" if number else path
        reason = getattr(error, "strerror", None) or error
        raise TraceError(f"{place}: cannot be read: {reason}") from error


def to_json_line(request: TraceRequest) -> str:
    """Return the request as a line of a trace file, without the line's end."""
    fields = {
        "timestamp": request.timestamp,
        "input_length": request.input_length,
        "output_length": request.output_length,
        "hash_ids": request.hash_ids,
    }
    return json.dumps(fields, separators=(",", ":"))


def _open(path: Path) -> BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")


def _parse(line: bytes) -> TraceRequest:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, or a number of thousands of digits
        raise TraceError(f"is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise TraceError(
            f"is {_shown(fields)}; allowed: a JSON object with timestamp, input_length, output_length, hash_ids"
        )
    hash_ids = fields.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(_is_count(hash_id) and hash_id < 2**64 for hash_id in hash_ids):
        raise TraceError(f"hash_ids is {_shown(hash_ids)}; allowed: a list of integers in 0..2**64-1")
    if len(set(hash_ids)) != len(hash_ids):
        twice = next(hash_id for hash_id, count in Counter(hash_ids).items() if count > 1)
        raise TraceError(f"hash_ids holds {twice} more than once; allowed: distinct ids, one per block of the prompt")
    return TraceRequest(
        _count(fields, "timestamp"), _count(fields, "input_length"), _count(fields, "output_length"), tuple(hash_ids)
    )


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or not _is_count(value):
        raise TraceError(f"{name} is {_shown(value)}; allowed: an integer of at least 0")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _shown(value: object) -> str:
    text = "missing" if value is None else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
