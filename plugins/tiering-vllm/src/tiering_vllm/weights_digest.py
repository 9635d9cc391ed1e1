"""A digest over a model's weights, so that KV of other weights under the same name is never used.

Read are the configuration files whole, and of every weights file its size and samples: of safetensors the header and
some bytes of each tensor, of any other format pieces evenly spread over the file. A retrained, merged or quantised
model differs in every tensor; a change of single elements between the samples is not seen. A 7B model costs about a
thousand reads of 4 KiB.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tiering.errors import ConfigError

__all__ = ["model_folder", "weights_digest"]

_CONFIGURATIONS = ("adapter_config.json", "config.json", "hf_quant_config.json", "quantize_config.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
_SAMPLE_BYTES = 4096
_SAMPLES_PER_TENSOR = 3
_SAMPLES_PER_FILE = 256
_MAX_HEADER_BYTES = 100 * 2**20


def model_folder(model: str, revision: str = "") -> Path | None:
    """Return where a model's files are: its own path, or the folder of its revision in the hub's cache.

    Args:
        model: a path, or a name of the hub.
        revision: a revision of the hub; empty for the only one that is in the cache.

    Returns:
        None where the model is not on this machine as files.

    Raises:
        ConfigError: the cache holds several revisions and none was named, or not the one that was.
    """
    if Path(model).exists():
        return Path(model)
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
    cached = hub / f"models--{model.replace('/', '--')}"
    revisions = sorted(path.name for path in (cached / "snapshots").glob("*"))
    if not revisions:
        return None
    reference = cached / "refs" / revision
    if revision and reference.is_file():
        revision = reference.read_text().strip()
    if not revision and len(revisions) == 1:
        revision = revisions[0]
    if revision not in revisions:
        raise ConfigError(
            f"kv_connector_extra_config: model_revision: {revision!r}: {cached} holds {', '.join(revisions)}; name the "
            "one that is served, so that KV of another is never used"
        )
    return cached / "snapshots" / revision


def weights_digest(folder: Path) -> str:
    """Return 32 hex digits over the model files in ``folder``, or over the one file that it is.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    files = [folder] if folder.is_file() else sorted(folder.iterdir())
    for path in files:
        if path.name in _CONFIGURATIONS:
            pieces: Iterator[bytes] = iter([path.read_bytes()])
        elif path.suffix in _WEIGHTS:
            pieces = _samples(path)
        else:
            continue
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for piece in pieces:
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()


def _samples(path: Path) -> Iterator[bytes]:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        spans = [(0, size, _SAMPLES_PER_FILE)]
        if path.suffix == ".safetensors":
            header = _safetensors_header(fd, size)
            if header is not None:
                yield header
                spans = _tensor_spans(header)
        for begin, end, count in spans:
            last = max(begin, end - _SAMPLE_BYTES)
            for offset in sorted({begin + (last - begin) * number // (count - 1) for number in range(count)}):
                yield os.pread(fd, min(_SAMPLE_BYTES, end - offset), offset)
    finally:
        os.close(fd)


def _safetensors_header(fd: int, size: int) -> bytes | None:
    num_bytes = int.from_bytes(os.pread(fd, 8, 0), "little")
    return os.pread(fd, num_bytes, 8) if num_bytes <= min(size - 8, _MAX_HEADER_BYTES) else None


def _tensor_spans(header: bytes) -> list[tuple[int, int, int]]:
    """Return (begin, end, samples) of each tensor, as offsets in the file."""
    tensors = json.loads(header)
    tensors.pop("__metadata__", None)
    data = 8 + len(header)
    offsets = sorted(tensor["data_offsets"] for tensor in tensors.values())
    return [(data + begin, data + end, _SAMPLES_PER_TENSOR) for begin, end in offsets]
