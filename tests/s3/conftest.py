from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from object_harness import Clock, Place, Servers, namespace, run_on_default_threads

from tiering.tier import TierContext


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Real object servers; each is started when a test first asks for it."""
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture
def place(servers: Servers, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Where a tier keeps objects: by default a prefix of its own on SeaweedFS, reached through s3fs."""
    return servers.place(getattr(request, "param", "s3fs-seaweedfs"), tmp_path_factory)


@pytest.fixture
def context() -> TierContext:
    return TierContext("objects", 64, namespace(64), Clock(), run_on_default_threads, lambda keys: None)
