"""How objects are named: ``prefix/<namespace fingerprint>/<fan-out>/<key>``, all but the prefix in hex."""

from __future__ import annotations

import xxhash

from tiering.keys import OffloadKey

__all__ = ["ObjectNames"]


class ObjectNames:
    """The names of one namespace's objects below one prefix.

    Attributes:
        directory: the namespace's part of the store; ends with a slash.
        namespace_json: the object that says in words what the namespace is.
    """

    def __init__(self, prefix: str, fingerprint: bytes) -> None:
        self.directory = f"{prefix}/{fingerprint.hex()}/" if prefix else f"{fingerprint.hex()}/"
        self.namespace_json = f"{self.directory}namespace.json"

    def name_of(self, key: OffloadKey) -> str:
        """Return the name of a chunk's object."""
        # The fan-out is hashed: keys need not begin with evenly spread bytes.
        return f"{self.directory}{xxhash.xxh3_64_intdigest(key) & 0xFF:02x}/{key.hex()}"

    def key_of(self, name: str) -> OffloadKey | None:
        """Return the key whose object ``name`` is, or None for any other name."""
        try:
            key = OffloadKey(bytes.fromhex(name.rpartition("/")[2]))
        except ValueError:
            return None
        return key if self.name_of(key) == name else None
