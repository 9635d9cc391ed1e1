"""The conformance suite of tiers: subclass it in a test module, and pytest runs every rule of the contract.

```python
class TestFolderTier(TierTests):
    abilities = frozenset({Ability.PERSISTS, Ability.ANY_LENGTH})

    def make_tier(self, place, context, max_chunks): ...
    def read_object(self, tier, key): ...
    def write_object(self, tier, key, payload): ...
    def remove_object(self, tier, key): ...
```

A complete example is in ``docs/testing-a-tier.md``.
"""

from __future__ import annotations

from tiering.testing.tier_rules.abilities import AbilityRules
from tiering.testing.tier_rules.damage import DamageRules
from tiering.testing.tier_rules.life import LifeRules
from tiering.testing.tier_rules.session import Ability, TierSession, TierUnderTest
from tiering.testing.tier_rules.storing import StoringRules

__all__ = ["Ability", "TierSession", "TierTests", "TierUnderTest"]


class TierTests(StoringRules, DamageRules, LifeRules, AbilityRules):
    """Every rule of `tiering.tier.Tier` as a test; `TierUnderTest` says what a subclass gives.

    Each test runs the tier on an event loop of its own, compares bytes through the back doors, and afterwards looks
    for threads and file descriptors left behind.
    """
