"""The conformance suite of tiers, over every client and every store."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import ClassVar

import pytest
from object_harness import QUICK_RETRIES, Place, Servers

from tiering.keys import OffloadKey
from tiering.registry import resolve_tier
from tiering.testing import Ability, TierTests
from tiering.tier import Tier, TierContext
from tiers.s3.object_format import HEADER_BYTES, MAX_KEY_BYTES
from tiers.s3.object_names import ObjectNames


class ObjectTierTests(TierTests):
    """The back doors of an object tier; ``what`` names client and store."""

    abilities = frozenset({Ability.PERSISTS, Ability.VERIFIES, Ability.ANY_LENGTH, Ability.DELETES, Ability.LISTS})
    max_key_bytes = MAX_KEY_BYTES
    what: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _use_servers(self, servers: Servers) -> None:
        self.servers = servers
        if "-" in self.what:
            servers.server(self.what.partition("-")[2])

    def place_of(self, place: Path) -> Place:
        return self.servers.place_of(self.what, place, hashlib.sha256(bytes(place)).hexdigest()[:16])

    def make_tier(self, place: Path, context: TierContext, max_chunks: int | None) -> Tier:
        settings = self.place_of(place).settings
        tier_type = resolve_tier(settings["type"])
        tier = tier_type(tier_type.config_type.model_validate(settings | {"retry": QUICK_RETRIES}), context)
        self.places = getattr(self, "places", {}) | {tier: self.place_of(place)}
        return tier

    def read_object(self, tier: Tier, key: OffloadKey) -> bytes | None:
        name = self.name_of(tier, key)
        place = self.places[tier]
        return place.read(name)[HEADER_BYTES:] if name in place.names() else None

    def write_object(self, tier: Tier, key: OffloadKey, payload: bytes) -> None:
        name = self.name_of(tier, key)
        place = self.places[tier]
        place.write(name, place.read(name)[:HEADER_BYTES] + payload)

    def remove_object(self, tier: Tier, key: OffloadKey) -> None:
        self.places[tier].remove(self.name_of(tier, key))

    def name_of(self, tier: Tier, key: OffloadKey) -> str:
        return ObjectNames("", tier.context.namespace.fingerprint).name_of(key)


class TestS3fsOnSeaweed(ObjectTierTests):
    what = "s3fs-seaweedfs"


class TestS3fsOnMoto(ObjectTierTests):
    what = "s3fs-moto"


class TestObstoreOnSeaweed(ObjectTierTests):
    what = "obstore-seaweedfs"
    watches_resources = False  # the library keeps its threads and their descriptors


class TestObstoreOnMoto(ObjectTierTests):
    what = "obstore-moto"
    watches_resources = False


class TestS3fsOnCeph(ObjectTierTests):
    what = "s3fs-ceph"


class TestObstoreOnCeph(ObjectTierTests):
    what = "obstore-ceph"
    watches_resources = False


class TestObstoreOnAzurite(ObjectTierTests):
    what = "obstore-azurite"
    watches_resources = False


class TestObstoreOnGoogle(ObjectTierTests):
    what = "obstore-google"
    watches_resources = False


class TestFiles(ObjectTierTests):
    what = "file"


class TestMemory(ObjectTierTests):
    what = "memory"
