"""What of a store is ours: by their names alone, whatever else lies between them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from tiering.inventory import StoredKind, StoredObject
from tiers.s3.clients.object_client import ListedObject
from tiers.s3.object_names import ObjectNames
from tiers.s3.object_store import ObjectStore

__all__ = ["list_ours", "recognised"]

_IN_NAMESPACE = re.compile(r"([0-9a-f]{32})/(?:[0-9a-f]{2}/)?([^/]+)")
_UNFINISHED = re.compile(r"[0-9a-f]{32}\.unfinished")


async def list_ours(store: ObjectStore, prefix: str) -> AsyncIterator[StoredObject]:
    """Iterate over what this project has written below ``prefix``: objects first, then uploads that never ended.

    Raises:
        TierError: the store cannot be listed.
    """
    directory = f"{prefix}/" if prefix else ""
    async for found in store.list(directory):
        if (stored := recognised(found, directory)) is not None:
            yield stored
    async for found in store.list_uploads(directory):
        if (stored := recognised(found, directory)) is not None:
            yield stored


def recognised(found: ListedObject, directory: str) -> StoredObject | None:
    """Return what ``found`` is, or None if its name is none that this project gives below ``directory``."""
    if not found.name.startswith(directory):
        return None
    parts = _IN_NAMESPACE.fullmatch(found.name, len(directory))
    if parts is None:
        return None
    names = ObjectNames(directory.rstrip("/"), bytes.fromhex(parts[1]))
    if _UNFINISHED.fullmatch(parts[2]):
        kind = StoredKind.LEFTOVER
    elif found.name == names.namespace_json:
        kind = StoredKind.DESCRIPTION
    elif names.key_of(found.name) is not None:
        kind = StoredKind.CHUNK
    else:
        return None
    if found.upload_id:
        kind = StoredKind.LEFTOVER
    return StoredObject(kind, parts[1], found.name, found.num_bytes, found.written_at, found.upload_id)
