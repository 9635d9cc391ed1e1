"""A start that fails half way leaves nothing behind, and the next one works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from engine_facts import config, engine

from tiering.keys import OffloadKey
from tiering.registry import register_tier
from tiering.request import ReqContext
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.testing import MemoryTier, MemoryTierConfig, ResourceWatch, drain
from tiering.tier import TierContext


class FragileConfig(MemoryTierConfig):
    type: Literal["fragile"] = "fragile"  # type: ignore[assignment]
    breaks_in: str = "nothing"


class FragileTier(MemoryTier):
    """Breaks where its configuration says, and counts what is open."""

    tier_type = "fragile"
    config_type = FragileConfig
    num_open: ClassVar[int] = 0

    def __init__(self, config: FragileConfig, context: TierContext) -> None:
        self.break_in("constructor", config)
        super().__init__(config, context)

    async def open(self) -> None:
        await self.context.run_blocking(int)  # a thread is running
        self.break_in("open", self.config)
        FragileTier.num_open += 1

    async def close(self) -> None:
        FragileTier.num_open -= 1
        self.break_in("close", self.config)

    async def keys(self) -> AsyncIterator[OffloadKey]:
        self.break_in("keys", self.config)
        for key in list(self.objects):
            yield key

    def describe(self) -> str:
        self.break_in("describe", self.config)
        return "fragile"

    @staticmethod
    def break_in(place: str, config: Any) -> None:
        if config.breaks_in == place:
            raise OSError(f"broken in {place}")


@pytest.fixture
def make_spec(tmp_path: Path) -> Callable[..., TieringOffloadingSpec]:
    register_tier(FragileTier)
    (tmp_path / "region").mkdir()
    (tmp_path / "disk").mkdir()

    def make(*tiers: dict[str, Any]) -> TieringOffloadingSpec:
        disk = {"type": "disk", "root_dirs": [str(tmp_path / "disk")], "capacity": "1MiB"}
        settings = config(
            region={"directory": str(tmp_path / "region")}, secondary_tier_configs=[disk, *tiers], spec_name="x"
        )
        return TieringOffloadingSpec(engine(enable_kv_events=True), settings)

    return make


@pytest.mark.parametrize("place", ["constructor", "open", "keys", "describe"])
@pytest.mark.parametrize("clean_up", ["nothing", "close"])
def test_tc_88_the_third_tier_fails(
    make_spec: Callable[..., TieringOffloadingSpec], tmp_path: Path, place: str, clean_up: str
) -> None:
    """With ``clean_up`` the second tier cannot even be closed again; the third one's error is the one to hear of."""
    second = {"type": "fragile", "name": "second", "breaks_in": clean_up}
    with ResourceWatch(tmp_path / "region"):
        spec = make_spec(second, {"type": "fragile", "name": "third", "breaks_in": place})
        with pytest.raises(OSError, match=f"broken in {place}") as caught:
            spec.get_manager()
        assert "while opening the secondary tier 'third'" in caught.value.__notes__
        assert FragileTier.num_open == 0
    with ResourceWatch(tmp_path / "region"):
        manager = make_spec({"type": "fragile", "name": "second"}).get_manager()
        assert manager.prepare_store([b"k" * 8], ReqContext("r")) is not None
        manager.complete_store([b"k" * 8])
        manager.on_request_finished(ReqContext("r"))
        drain(manager)
        assert manager.get_stats()["tiers"]["second"]["stored_chunks"] == 1
        manager.shutdown()
        assert FragileTier.num_open == 0


def test_the_same_spec_may_try_again(make_spec: Callable[..., TieringOffloadingSpec], tmp_path: Path) -> None:
    spec = make_spec({"type": "fragile", "breaks_in": "open"})
    for _ in range(3):
        with pytest.raises(OSError, match="broken in open"):
            spec.get_manager()
    assert list((tmp_path / "region").iterdir()) == []


def test_the_region_fails(make_spec: Callable[..., TieringOffloadingSpec], tmp_path: Path) -> None:
    spec = make_spec({"type": "fragile"})
    with ResourceWatch():
        (tmp_path / "region").rmdir()
        with pytest.raises(OSError, match="region"):
            spec.get_manager()
        (tmp_path / "region").mkdir()
        spec.get_manager().shutdown()
    assert FragileTier.num_open == 0
