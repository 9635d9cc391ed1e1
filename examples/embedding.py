"""Twenty lines of engine: store a chunk, lose it from the device, load it back.

One process plays both parts here; a real engine has the manager in its scheduler and the handlers in each worker.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from tiering import (
    CPULoadStoreSpec,
    EngineConfig,
    GPULoadStoreSpec,
    KVGroup,
    ReqContext,
    make_offload_key,
    parse_config,
)
from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, OffloadingWorker
from tiering.specs.tiering import TieringOffloadingSpec


def main(disk_root: str) -> bool:
    """Return whether the chunk has come back byte for byte."""
    disk = {"type": "disk", "root_dirs": [disk_root], "capacity": "16MiB"}
    config = parse_config({"cpu_bytes_to_use": "1MiB", "secondary_tier_configs": [disk]})
    kv = torch.randint(-128, 128, (8, 4096), dtype=torch.int8)  # 8 device blocks
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(kv, 4096)], [[CanonicalKVCacheRef(0, 4096)]])
    engine = EngineConfig(f"demo-{os.getpid()}", (KVGroup(16, (0,)),), (4096,), num_device_blocks=8, tokens_per_hash=16)
    scheduler, rank = TieringOffloadingSpec(engine, config), TieringOffloadingSpec(replace(engine, rank=0), config)
    manager, worker = scheduler.get_manager(), OffloadingWorker()
    for handler in rank.get_handlers(caches):
        worker.register_handler(*handler)
    scheduler.unlink_region()  # all have joined: whatever happens now, nothing is left behind

    request, key = ReqContext("request-1"), make_offload_key(b"hash of the first 16 tokens", 0)
    if (store := manager.prepare_store([key], request)) is not None:  # None: no room now
        worker.transfer_async(1, (GPULoadStoreSpec([3], [1], [0]), store.store_spec))  # device block 3 -> row
        worker.wait({1})
        manager.complete_store(store.keys_to_store)  # from here on it also goes to the disk
    manager.on_request_finished(request)
    manager.on_schedule_end()

    computed = kv[3].clone()
    kv[3] = 0
    request = ReqContext("request-2")
    if manager.lookup(key, request):  # True: ready; None: ask again in a later step; False: compute it
        rows: CPULoadStoreSpec = manager.prepare_load([key], request)
        worker.transfer_async(2, (rows, GPULoadStoreSpec([3], [1], [0])))
        worker.wait({2})
        manager.complete_load([key])
    manager.on_request_finished(request)
    rank.shutdown()
    scheduler.shutdown()
    return torch.equal(kv[3], computed)
