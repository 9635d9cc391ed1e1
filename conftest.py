"""What every test may use: the plugin that third parties switch on in the same way."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs so, and the programs under test would inherit it and be deaf to the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tiering.testing.pytest_plugin"]
