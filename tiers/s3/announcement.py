"""The object that says in words what a namespace is, and what writing it shows about the store."""

from __future__ import annotations

from tiering.errors import PermanentTierError
from tiering.naming import Namespace
from tiers.s3.clients.object_client import ObjectClient
from tiers.s3.errors import ObjectExistsError
from tiers.s3.object_store import ObjectStore

__all__ = ["announce"]


async def announce(store: ObjectStore, name: str, namespace: Namespace, deadline: float) -> bool:
    """Write ``namespace.json`` under ``name``; return whether the store tells a second writer of an object so.

    Its content depends on nothing but its name, so that it does not matter who wrote it, and how often.

    Raises:
        TierError: it could not be written.
    """

    async def pack(_: ObjectClient) -> bytes:
        return namespace.to_json().encode()

    _, can_put_if_absent = await store.describe()
    if can_put_if_absent:
        try:
            for _ in range(2):
                await store.put(name, pack, deadline, only_if_absent=True)
        except ObjectExistsError:
            return True
        except PermanentTierError:  # a service that does not know conditions may refuse them
            await store.put(name, pack, deadline)
    else:
        await store.put(name, pack, deadline)
    return False
