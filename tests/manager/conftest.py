from __future__ import annotations

import pytest


@pytest.fixture(params=["lru", "arc", "arc_paper"])
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)
