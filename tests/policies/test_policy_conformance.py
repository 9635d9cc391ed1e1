"""The installed policies, and a third party's, under the suite that third parties get."""

from __future__ import annotations

from test_policies import FirstInFirstOut

from tiering.testing import PolicyTests


class TestLRU(PolicyTests):
    policy = "lru"


class TestARC(PolicyTests):
    policy = "arc"


class TestPaperARC(PolicyTests):
    policy = "arc_paper"


class TestThirdParty(PolicyTests):
    policy = FirstInFirstOut
