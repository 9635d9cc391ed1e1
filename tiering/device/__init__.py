"""The data path of a worker: moves bytes between device blocks and rows. The only package that needs torch."""

from tiering.device.copy_engine import CopyEngine, CopyResult
from tiering.device.cpu_gpu_handlers import CpuGpuOffloadingHandlers
from tiering.device.cuda_copy_engine import CudaCopyEngine
from tiering.device.cuda_runtime import CudaError, CudaRuntime, Direction
from tiering.device.host_copy_engine import HostCopyEngine
from tiering.device.kv_caches import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor
from tiering.device.offloading_handler import OffloadingHandler, TransferResult
from tiering.device.offloading_worker import OffloadingWorker
from tiering.device.single_direction_handler import SingleDirectionOffloadingHandler
from tiering.device.store_turns import StoreTurns
from tiering.device.sub_blocks import compute_sub_block_ptrs

__all__ = [
    "CanonicalKVCacheRef",
    "CanonicalKVCacheTensor",
    "CanonicalKVCaches",
    "CopyEngine",
    "CopyResult",
    "CpuGpuOffloadingHandlers",
    "CudaCopyEngine",
    "CudaError",
    "CudaRuntime",
    "Direction",
    "HostCopyEngine",
    "OffloadingHandler",
    "OffloadingWorker",
    "SingleDirectionOffloadingHandler",
    "StoreTurns",
    "TransferResult",
    "compute_sub_block_ptrs",
]
