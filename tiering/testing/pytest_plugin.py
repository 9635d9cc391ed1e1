"""The pytest plugin: readable failures of the suites, and how long random histories are played.

Switched on in the root ``conftest.py``: ``pytest_plugins = ["tiering.testing.pytest_plugin"]``. It is no entry point,
so that it disturbs nobody who only has this project installed.
"""

from __future__ import annotations

import pytest

__all__ = ["machine_examples", "machine_seed", "pytest_addoption"]

pytest.register_assert_rewrite(
    "tiering.testing.tier_rules",
    "tiering.testing.policy_suite",
    "tiering.testing.manager_model",
    "tiering.testing.manager_machine",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `run_machine`."""
    group = parser.getgroup("tiering")
    group.addoption(
        "--machine-examples", type=int, default=2000, metavar="N", help="random histories that a manager machine plays"
    )
    group.addoption("--machine-seed", type=int, default=0, metavar="SEED", help="seed of these histories")


@pytest.fixture(scope="session")
def machine_examples(request: pytest.FixtureRequest) -> int:
    """``--machine-examples``."""
    return int(request.config.getoption("--machine-examples"))


@pytest.fixture(scope="session")
def machine_seed(request: pytest.FixtureRequest) -> int:
    """``--machine-seed``."""
    return int(request.config.getoption("--machine-seed"))
