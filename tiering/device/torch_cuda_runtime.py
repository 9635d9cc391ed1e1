"""CUDA through torch, and through cuda-bindings for what torch does not offer."""

from __future__ import annotations

import ctypes
import importlib
import os
from typing import Any

import numpy as np
import torch

from tiering.device.cuda_runtime import CudaError, CudaRuntime, Direction, Event, Stream
from tiering.device.sub_blocks import IntArray

__all__ = ["TorchCudaRuntime"]

# Numbers of CUDA's C interface, stable since its beginning.
_MEMCPY_HOST_TO_DEVICE = 1
_MEMCPY_DEVICE_TO_HOST = 2
_HOST_REGISTER_PORTABLE = 1

# Torch gives no types for these.
_cuda: Any = torch.cuda


class TorchCudaRuntime(CudaRuntime):
    """The CUDA device of a torch tensor."""

    def __init__(self, device: torch.device) -> None:
        """Choose how pieces are copied, once, by copying a few bytes in both directions and comparing them.

        Raises:
            ValueError: torch cannot be used for copies to and from this device.
            CudaError: not even single copies work.
        """
        if torch.version.cuda is None:
            raise ValueError(f"this build of torch has no CUDA; tensors on {device} cannot be copied")
        settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") + os.environ.get("PYTORCH_ALLOC_CONF", "")
        if "expandable_segments:true" in settings.replace(" ", "").lower():
            raise ValueError(
                "torch is told to use expandable_segments, whose KV tensors consist of separately mapped parts that "
                "copies cannot cross; allowed: PYTORCH_CUDA_ALLOC_CONF without expandable_segments:True"
            )
        self._device = device
        with _cuda.device(device):
            self._cudart = _cuda.cudart()
        self._library = _runtime_library(torch.version.cuda)
        self._batch = _Batch()
        self._try_copying(self.copy_each)
        self.can_batch, self.copy_method = True, "cudaMemcpyBatchAsync"
        try:
            self._try_copying(self.copy_batch)
        except Exception as error:
            self.can_batch, self.copy_method = False, f"one cudaMemcpyAsync per piece ({error})"

    def new_stream(self) -> Stream:
        return _cuda.Stream(self._device)

    def new_event(self) -> Event:
        return _cuda.Event(enable_timing=True)

    def wait_for_compute(self, stream: Stream) -> None:
        stream.wait_stream(_cuda.current_stream(self._device))

    def wait_for_event(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def record(self, event: Event, stream: Stream) -> None:
        event.record(stream)

    def copy_batch(
        self, stream: Stream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        with _cuda.device(self._device):
            self._batch.launch(stream.cuda_stream, src_ptrs, dst_ptrs, sizes, direction)

    def copy_each(
        self, stream: Stream, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        kind = _MEMCPY_DEVICE_TO_HOST if direction is Direction.TO_HOST else _MEMCPY_HOST_TO_DEVICE
        copy, handle = self._library.cudaMemcpyAsync, stream.cuda_stream
        with _cuda.device(self._device):
            for src, dst, size in zip(src_ptrs.tolist(), dst_ptrs.tolist(), sizes.tolist(), strict=True):
                code = copy(dst, src, size, kind, handle)
                if code:
                    raise self._error("cudaMemcpyAsync", code)

    def has_happened(self, event: Event) -> bool:
        return bool(event.query())

    def synchronize(self, event: Event) -> None:
        event.synchronize()

    def seconds_between(self, start: Event, end: Event) -> float:
        return float(start.elapsed_time(end)) / 1000

    def pin(self, address: int, num_bytes: int) -> None:
        with _cuda.device(self._device):
            code = int(self._cudart.cudaHostRegister(address, num_bytes, _HOST_REGISTER_PORTABLE))
        if code:
            raise self._error("cudaHostRegister", code)

    def unpin(self, address: int) -> None:
        with _cuda.device(self._device):
            code = int(self._cudart.cudaHostUnregister(address))
        if code:
            raise self._error("cudaHostUnregister", code)

    def _error(self, call: str, code: int) -> CudaError:
        # CUDA remembers the error, and torch would blame its own next call for it.
        self._library.cudaGetLastError()
        return CudaError(f"{call} on {self._device}: {self._cudart.cudaGetErrorString(self._cudart.cudaError(code))}")

    def _try_copying(self, copy: Any) -> None:
        sent = torch.arange(256, dtype=torch.uint8).pin_memory()
        received = torch.zeros(256, dtype=torch.uint8).pin_memory()
        between = torch.zeros(256, dtype=torch.uint8, device=self._device)
        _cuda.current_stream(self._device).synchronize()
        stream = self.new_stream()
        steps = ((sent, between, Direction.TO_DEVICE), (between, received, Direction.TO_HOST))
        for src, dst, direction in steps:
            offsets = np.array([0, 200], dtype=np.int64)
            sizes = np.array([200, 56], dtype=np.int64)
            copy(stream, src.data_ptr() + offsets, dst.data_ptr() + offsets, sizes, direction)
            stream.synchronize()
        if not torch.equal(sent, received):
            raise CudaError(f"copies on {self._device} arrive with wrong bytes")


class _Batch:
    """`cudaMemcpyBatchAsync` of cuda-bindings, imported when it is first used: not every installation has it."""

    def __init__(self) -> None:
        self._bindings: Any = None
        self._attributes: dict[Direction, Any] = {}

    def launch(
        self, stream: int, src_ptrs: IntArray, dst_ptrs: IntArray, sizes: IntArray, direction: Direction
    ) -> None:
        if self._bindings is None:
            self._load()
        lists = (dst_ptrs.tolist(), src_ptrs.tolist(), sizes.tolist())
        attributes = [self._attributes[direction]]
        (code, *_) = self._bindings.cudaMemcpyBatchAsync(*lists, len(sizes), attributes, [0], 1, stream)
        if int(code):
            raise CudaError(f"cudaMemcpyBatchAsync of {len(sizes)} pieces: {code.name}")

    def _load(self) -> None:
        runtime = importlib.import_module("cuda.bindings.runtime")
        orders = runtime.cudaMemcpySrcAccessOrder
        for direction, order in (
            # Device blocks are read when their turn on the stream has come; rows may be read at once: they are pinned
            # and nobody writes them.
            (Direction.TO_HOST, orders.cudaMemcpySrcAccessOrderStream),
            (Direction.TO_DEVICE, orders.cudaMemcpySrcAccessOrderAny),
        ):
            attributes = runtime.cudaMemcpyAttributes()
            attributes.srcAccessOrder = order
            self._attributes[direction] = attributes
        self._bindings = runtime


def _runtime_library(cuda_version: str) -> ctypes.CDLL:
    """Return the CUDA runtime library that torch has loaded."""
    name = f"libcudart.so.{cuda_version.partition('.')[0]}"
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise CudaError(f"{name} of this torch cannot be used: {error}") from error
    memcpy = library.cudaMemcpyAsync
    memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    return library
