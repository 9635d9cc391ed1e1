"""An engine of two pages with tiered KV, for authors of engines: scheduler, worker and a tiny random model.

What matters is marked "tiering:". The rest is any engine: a paged KV cache, prefix hashes, greedy decoding. One process
plays scheduler and worker; ``docs/embedding.md`` says what changes with several.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from tiering import (
    CPULoadStoreSpec,
    EngineConfig,
    GPULoadStoreSpec,
    KVGroup,
    OffloadKey,
    ReqContext,
    TieringConfig,
    make_offload_key,
    parse_config,
)
from tiering.device import CanonicalKVCacheRef, CanonicalKVCaches, CanonicalKVCacheTensor, OffloadingWorker
from tiering.specs.tiering import TieringOffloadingSpec

BLOCK = 4  # tokens per block
NUM_BLOCKS = 32
LAYERS, HEADS, DIM, VOCABULARY = 2, 2, 16, 97
PAGE_BYTES = 2 * BLOCK * HEADS * DIM * 4  # keys and values of one block in one layer, fp32


class Model:
    """A random transformer over a paged KV cache.

    Attributes:
        kv: per layer, float32 of shape (blocks, keys and values, tokens, heads, dim).
    """

    def __init__(self, seed: int) -> None:
        width, generator = HEADS * DIM, torch.Generator().manual_seed(seed)
        self._embedding = torch.randn(VOCABULARY, width, generator=generator)
        self._layers = torch.randn(LAYERS, 4, width, width, generator=generator) / width**0.5
        self._head = torch.randn(width, VOCABULARY, generator=generator)
        self._positions = torch.randn(NUM_BLOCKS * BLOCK, width, generator=generator)
        self.kv = [torch.zeros(NUM_BLOCKS, 2, BLOCK, HEADS, DIM) for _ in range(LAYERS)]

    def next_token(self, tokens: Sequence[int], num_computed: int, block_table: Sequence[int]) -> int:
        """Compute the KV of all tokens behind the first ``num_computed`` ones; return the likeliest next token."""
        total = len(tokens)
        positions = torch.arange(num_computed, total)
        blocks = torch.tensor(block_table)
        hidden = self._embedding[torch.tensor(tokens[num_computed:])] + self._positions[positions]
        visible = torch.arange(total)[None, :] <= positions[:, None]
        for (query, key, value, out), kv in zip(self._layers, self.kv, strict=True):
            for which, weights in enumerate((key, value)):
                kv[blocks[positions // BLOCK], which, positions % BLOCK] = (hidden @ weights).view(-1, HEADS, DIM)
            keys, values = (kv[blocks, which].flatten(0, 1)[:total].transpose(0, 1) for which in (0, 1))
            queries = (hidden @ query).view(-1, HEADS, DIM).transpose(0, 1)
            attended = scaled_dot_product_attention(queries, keys, values, attn_mask=visible)
            hidden = hidden + torch.tanh(attended.transpose(0, 1).flatten(1) @ out)
        return int((hidden[-1] @ self._head).argmax())


@dataclass
class Generated:
    """What came of one request.

    Attributes:
        tokens: the generated ones.
        num_loaded: prompt tokens whose KV was loaded instead of computed.
        num_waits: steps in which the request waited for a tier.
    """

    tokens: list[int]
    num_loaded: int = 0
    num_waits: int = 0


class Engine:
    """Serves one request at a time, and keeps nothing on its device between two of them."""

    def __init__(self, config: TieringConfig, seed: int = 0) -> None:
        self._model = Model(seed)
        self._num_requests = self._num_jobs = 0
        # tiering: what the engine knows; the same in each of its processes, but for the rank.
        engine = EngineConfig(
            engine_id=f"example-{id(self)}",
            groups=(KVGroup(BLOCK, tensor_indices=tuple(range(LAYERS))),),
            tensor_page_bytes=(PAGE_BYTES,) * LAYERS,
            num_device_blocks=NUM_BLOCKS,
            tokens_per_hash=BLOCK,
            model_name=f"random-{seed}",
            weights_digest=str(seed),
            kv_dtype="float32",
            kv_layout="block,kv,token,head",
        )
        # tiering: in the scheduler, the manager; in each worker, the handlers over its own KV tensors.
        self._scheduler = TieringOffloadingSpec(engine, config)
        self._manager = self._scheduler.get_manager()
        tensors = [
            CanonicalKVCacheTensor(kv.view(NUM_BLOCKS, -1).view(torch.int8), PAGE_BYTES) for kv in self._model.kv
        ]
        caches = CanonicalKVCaches(tensors, [[CanonicalKVCacheRef(index, PAGE_BYTES) for index in range(LAYERS)]])
        self._worker = OffloadingWorker()
        self._rank = TieringOffloadingSpec(replace(engine, rank=0), config)
        for handler in self._rank.get_handlers(caches):
            self._worker.register_handler(*handler)
        self._scheduler.unlink_region()  # all have joined: whatever happens now, nothing is left behind

    def generate(self, prompt: Sequence[int], num_tokens: int) -> Generated:
        """Decode greedily."""
        self._num_requests += 1
        request = ReqContext(f"request-{self._num_requests}")
        for kv in self._model.kv:
            kv.zero_()  # somebody else has used these blocks meanwhile
        block_table = [(7 * number + self._num_requests) % NUM_BLOCKS for number in range(NUM_BLOCKS)]
        result = Generated([])
        self._manager.on_new_request(request)
        # The last token is always computed: its logits are wanted.
        num_computed = self._load(request, chunk_keys(prompt[:-1]), block_table, result) * BLOCK
        tokens, num_stored = list(prompt), num_computed // BLOCK
        while len(result.tokens) < num_tokens:
            result.tokens.append(self._model.next_token(tokens, num_computed, block_table))
            num_computed = len(tokens)
            num_stored = self._store(request, chunk_keys(tokens), num_stored, block_table)
            tokens.append(result.tokens[-1])
            self._manager.on_schedule_end()  # tiering: once per step, so that tiers get their work
        self._manager.on_request_finished(request)
        self._manager.on_schedule_end()
        return result

    def close(self) -> None:
        """Let the tiers finish what they were given, then give everything back."""
        while self._manager.has_pending_work():
            self._manager.on_schedule_end()
        self._rank.shutdown()
        self._scheduler.shutdown()

    def _load(
        self, request: ReqContext, keys: Sequence[OffloadKey], block_table: Sequence[int], result: Generated
    ) -> int:
        """Bring the longest prefix there is into the first blocks; return its length in blocks."""
        while (found := self._manager.lookup_prefix(keys, request)).must_wait:
            # tiering: it is on its way from a tier. A real engine schedules other requests in this step.
            result.num_waits += 1
            self._manager.on_schedule_end()
        count = found.num_ready
        if count:
            rows = self._manager.prepare_load(keys[:count], request)
            self._copy(rows, GPULoadStoreSpec(block_table[:count], [count], [0]))
            self._manager.complete_load(keys[:count], request)
        result.num_loaded = count * BLOCK
        return count

    def _store(
        self, request: ReqContext, keys: Sequence[OffloadKey], num_stored: int, block_table: Sequence[int]
    ) -> int:
        """Offer the full blocks behind the first ``num_stored`` ones; return how many need not be offered again."""
        new = keys[num_stored:]
        if not new:
            return num_stored
        store = self._manager.prepare_store(new, request)
        if store is None:
            return num_stored  # tiering: no row to be had now; the same blocks are offered again in the next step
        wanted = set(store.keys_to_store)
        blocks = [block_table[num_stored + number] for number, key in enumerate(new) if key in wanted]
        if blocks:
            self._copy(GPULoadStoreSpec(blocks, [len(blocks)], [0]), store.store_spec)
            self._manager.complete_store(store.keys_to_store, req_context=request)
        return len(keys)

    def _copy(self, source: CPULoadStoreSpec | GPULoadStoreSpec, to: CPULoadStoreSpec | GPULoadStoreSpec) -> None:
        """Have the worker copy, and wait for it. A real engine polls ``get_finished`` in later steps instead."""
        self._num_jobs += 1
        if not self._worker.transfer_async(self._num_jobs, (source, to)):
            raise RuntimeError(f"copy {self._num_jobs} was refused; see the log")
        self._worker.wait({self._num_jobs})
        for done in self._worker.get_finished():
            if not done.success:
                raise RuntimeError(f"copy {done.job_id} failed: {done.error}")


def chunk_keys(tokens: Sequence[int]) -> list[OffloadKey]:
    """Name the full blocks of a text, each by all tokens up to its end."""
    keys, digest = [], hashlib.sha256()
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        digest.update(bytes(tokens[end - BLOCK : end]))
        keys.append(make_offload_key(digest.digest(), 0))
    return keys


def main(disk_root: str) -> list[Generated]:
    """Ask the same three times: a new engine, the same one again, and another one over the same disk."""
    disk = {"type": "disk", "root_dirs": [disk_root], "capacity": "16MiB"}
    config = parse_config({"cpu_bytes_to_use": "1MiB", "secondary_tier_configs": [disk]})
    prompt = [(5 * number * number + 11) % VOCABULARY for number in range(30)]
    first = Engine(config)
    answers = [first.generate(prompt, 12), first.generate(prompt, 12)]
    first.close()
    second = Engine(config)
    answers.append(second.generate(prompt, 12))
    second.close()
    return answers


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for answer in main(folder):
            print(f"loaded {answer.num_loaded:2} of 30 tokens, waited {answer.num_waits} steps: {answer.tokens}")
