"""The namespace of stored objects: everything on which the meaning of their bytes depends.

Two engines may share a directory or a bucket exactly if every field here is equal for both; the fingerprint of all
fields is part of every stored object, so bytes of another model, layout or parallel size can never be a hit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["FORMAT_VERSION", "Namespace"]

FORMAT_VERSION = 1
"""Version of what row bytes mean; raised when the layout of a row changes."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """The fields that decide whether stored bytes are ours.

    Attributes:
        model_name: name or path of the model.
        model_revision: revision of its repository, where known.
        weights_digest: digest over the weights, where the engine can give one.
        kv_dtype: element type of the KV cache.
        kv_layout: how a block's bytes are ordered (attention backend, head/token order, packing).
        tokens_per_chunk: tokens per chunk, per KV-cache group.
        group_page_bytes: per KV-cache group, the bytes of one device block in each of its tensors.
        block_size_factor: device blocks per chunk.
        world_size: number of ranks whose bytes lie in one row.
        parallel_layout: how the ranks divide the model, such as ``tp2pp1cp1``.
        hash_scheme: how the engine makes chunk hashes.
        row_bytes: size of one row.
        extra: further fields an engine adapter must tell apart.
        format_version: `FORMAT_VERSION` of the writer.
    """

    model_name: str
    row_bytes: int
    model_revision: str = ""
    weights_digest: str = ""
    kv_dtype: str = ""
    kv_layout: str = ""
    tokens_per_chunk: tuple[int, ...] = ()
    group_page_bytes: tuple[tuple[int, ...], ...] = ()
    block_size_factor: int = 1
    world_size: int = 1
    parallel_layout: str = ""
    hash_scheme: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that differ whenever any field differs; safe as part of a path when written in hex."""
        return hashlib.blake2b(self.to_json().encode(), digest_size=16).digest()

    def to_json(self) -> str:
        """Return all fields as one canonical JSON object (what ``namespace.json`` holds)."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=True, indent=1)

    def differences(self, other_json: str) -> list[str]:
        """Name the fields in which the JSON of another namespace differs, as ``field: theirs -> ours``."""
        ours, theirs = json.loads(self.to_json()), json.loads(other_json)
        names = sorted(ours.keys() | theirs.keys())
        return [
            f"{name}: {theirs.get(name)!r} -> {ours.get(name)!r}"
            for name in names
            if ours.get(name) != theirs.get(name)
        ]
