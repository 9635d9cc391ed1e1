"""What every test may use: the plugin that third parties switch on in the same way."""

from __future__ import annotations

pytest_plugins = ["tiering.testing.pytest_plugin"]
