from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def box_tier_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "installed")
