"""``python -m tiering``: the same as the ``tiering`` command."""

from __future__ import annotations

from tiering.cli.app import main

main()
