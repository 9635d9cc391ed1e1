"""The rules of the tier contract, one test each; `tiering.testing.TierTests` has all of them."""

from __future__ import annotations
