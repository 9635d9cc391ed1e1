"""A GPU machine without this project's other dependencies can run its device path."""

from __future__ import annotations

import subprocess
import sys

NOT_NEEDED = ("pydantic", "pluggy", "yaml", "typer", "rich", "aiofiles", "xxhash", "fsspec", "s3fs", "vllm", "cuda")


def test_the_device_path_needs_torch_and_numpy_only() -> None:
    program = "import sys, tiering.device, tiering.device.torch_cuda_runtime; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert {"torch", "numpy"} <= loaded
    assert not loaded & set(NOT_NEEDED)
