"""The engine's KV cache in one shape, whatever its attention backend: int8 tensors of blocks (seed, chapter 1.8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["CanonicalKVCacheRef", "CanonicalKVCacheTensor", "CanonicalKVCaches", "check_block_tensor"]


def check_block_tensor(tensor: torch.Tensor, what: str) -> None:
    """Raise ValueError unless ``tensor`` is int8 of shape ``(num_blocks, page_bytes)`` with contiguous pages."""
    if tensor.dtype != torch.int8 or tensor.ndim != 2 or tensor.shape[1] < 1 or tensor.stride(1) != 1:
        raise ValueError(
            f"{what} is {tensor.dtype} of shape {tuple(tensor.shape)} and stride {tensor.stride()}; allowed: int8 of "
            "shape (num_blocks, page_bytes) with contiguous pages"
        )


@dataclass(frozen=True, slots=True)
class CanonicalKVCacheTensor:
    """One device tensor, block by block.

    Attributes:
        tensor: int8 of shape ``(num_blocks, page_size_bytes)``.
        page_size_bytes: bytes of one block, padding included.
    """

    tensor: torch.Tensor
    page_size_bytes: int

    def __post_init__(self) -> None:
        check_block_tensor(self.tensor, "KV tensor")
        if self.tensor.shape[1] != self.page_size_bytes:
            raise ValueError(f"KV tensor has pages of {self.tensor.shape[1]} bytes, not {self.page_size_bytes}")


@dataclass(frozen=True, slots=True)
class CanonicalKVCacheRef:
    """The use of one tensor by a layer, or by layers that share it.

    Attributes:
        tensor_idx: index into `CanonicalKVCaches.tensors`.
        page_size_bytes: bytes of one block that are used, without padding; they come first in the page.
    """

    tensor_idx: int
    page_size_bytes: int


@dataclass(frozen=True, slots=True)
class CanonicalKVCaches:
    """All KV tensors of one worker, and which of them each KV-cache group uses.

    Attributes:
        tensors: the tensors, each listed once.
        group_data_refs: per group, in the order of the group index, its uses of them.
    """

    tensors: Sequence[CanonicalKVCacheTensor]
    group_data_refs: Sequence[Sequence[CanonicalKVCacheRef]]

    def __post_init__(self) -> None:
        for group_idx, refs in enumerate(self.group_data_refs):
            for ref in refs:
                if not 0 <= ref.tensor_idx < len(self.tensors):
                    raise ValueError(f"group {group_idx}: {ref} names none of the {len(self.tensors)} tensors")
                page = self.tensors[ref.tensor_idx].page_size_bytes
                if not 0 < ref.page_size_bytes <= page:
                    raise ValueError(f"group {group_idx}: {ref}: allowed are 1 to {page} bytes of that tensor's page")
