"""An engine that has jobs under way and ends without a shutdown, in the way that its argument says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from engine_facts import config, engine

from tiering.keys import make_offload_key
from tiering.registry import register_tier
from tiering.request import ReqContext
from tiering.specs.tiering import TieringOffloadingSpec
from tiering.testing import Fault, FaultSchedule, FaultyTier, MemoryTier, MemoryTierConfig
from tiering.tier import TierContext


class StuckTier(FaultyTier):
    """Never ends a store."""

    tier_type = "stuck"
    config_type = type("StuckConfig", (MemoryTierConfig,), {"__annotations__": {"type": str}, "type": "stuck"})

    def __init__(self, config: MemoryTierConfig, context: TierContext) -> None:
        super().__init__(MemoryTier(config, context), FaultSchedule(rates={Fault.STUCK: 1.0}))


def end(how: str) -> None:
    match how:
        case "exit in a thread":
            thread = threading.Thread(target=sys.exit, args=(3,))
            thread.start()
            thread.join()
        case "exception":
            raise KeyError("the engine has failed")
        case "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        case "SIGINT":
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()


def main(directory: Path, how: str) -> None:
    register_tier(StuckTier)
    disk = {"type": "disk", "root_dirs": [str(directory / "disk")], "capacity": "1MiB"}
    settings = config(region={"directory": str(directory / "region")}, secondary_tier_configs=[disk, {"type": "stuck"}])
    spec = TieringOffloadingSpec(engine(), settings)
    manager = spec.get_manager()
    assert spec.region is not None
    spec.region.unlink()  # there are no workers to wait for
    for number in range(8):
        key = make_offload_key(number.to_bytes(8, "big"), 0)
        assert manager.prepare_store([key], ReqContext("request")) is not None
        manager.complete_store([key])
        manager.on_schedule_end()
    print("running", flush=True)
    end(how)
    while how == "SIGINT":
        manager.on_schedule_end()
        time.sleep(0.001)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
