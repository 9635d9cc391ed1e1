"""A vLLM engine in a process of its own, which serves the rounds that a benchmark asks it for, one at a time."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Served", "VllmEngine", "Wanted"]

_BLOCK_TOKENS = 32
_READY, _SERVED = "READY ", "SERVED "
_SOURCES = {"device": "device", "host": "CPU", "disk": "disk", "external_unspecified": "S3"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One round.

    Attributes:
        prompts: token ids of each request; all requests come at once.
        num_tokens: generated for each, greedily.
        tiers: the request's ``kv_load_tiers`` and ``kv_store_tiers``; rows are always used.
        forget: which caches are emptied before: ``device``, or ``rows`` for the rows too; empty: none.
    """

    prompts: list[list[int]]
    num_tokens: int
    tiers: dict[str, list[str]] = field(default_factory=dict)
    forget: str = ""


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a round.

    Attributes:
        tokens: generated, per request.
        num_steps: of the engine, those in which tokens came out; in others it waits for a tier's answer.
        seconds: from the first request to the last token.
        first_token_seconds: from the first request to its first token.
        thread_seconds: CPU time of the engine's thread meanwhile: scheduling and computing, without waiting.
        cpu_seconds: CPU time of all threads, until nothing was left to store.
        cached: prompt tokens that were not computed, by where they came from.
    """

    tokens: list[list[int]]
    num_steps: int
    seconds: float
    first_token_seconds: float
    thread_seconds: float
    cpu_seconds: float
    cached: dict[str, int]


class VllmEngine:
    """The engine as a context manager; leaving it ends the process."""

    def __init__(self, model: str, tiering: dict[str, Any] | None, environment: dict[str, str], log: Path) -> None:
        """Start the process; the model is loaded in the background.

        Args:
            model: folder or name.
            tiering: configuration of the tiers; none: no tiering.
            environment: added to ours.
            log: file for what vLLM says.
        """
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.vllm_engine", json.dumps([model, tiering])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> VllmEngine:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._process:
            if error is not None:
                self._process.kill()

    def vocabulary_size(self) -> int:
        """Wait until it is ready to serve; returns how many different tokens it knows."""
        return int(self._answer(_READY))

    def serve(self, wanted: Wanted) -> Served:
        """Serve one round, and let all stores end."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps(asdict(wanted)) + "\n")
            self._process.stdin.flush()
        return Served(**json.loads(self._answer(_SERVED)))

    def _answer(self, kind: str) -> str:
        for line in self._process.stdout or ():
            if line.startswith(kind):
                return line.removeprefix(kind)
        raise RuntimeError(f"the engine has ended; its last words:\n{self._log.read_text(errors='replace')[-6000:]}")


class _Engine:
    """The other side of the pipe."""

    def __init__(self, model: str, tiering: dict[str, Any] | None) -> None:
        self._vllm = importlib.import_module("vllm")
        connector = None
        if tiering is not None:
            extra = {"spec_name": "KVTieringSpec", "spec_module_path": "tiering_vllm", **tiering}
            connector = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            }
        self._llm = self._vllm.LLM(
            model,
            dtype="float32",
            enforce_eager=True,
            disable_log_stats=False,
            skip_tokenizer_init=True,
            block_size=_BLOCK_TOKENS,
            max_model_len=2048,
            max_num_batched_tokens=2048,
            num_gpu_blocks_override=128,
            kv_transfer_config=connector,
        )
        self._num_requests = 0

    def vocabulary_size(self) -> int:
        return int(self._llm.llm_engine.model_config.get_vocab_size())

    def serve(self, wanted: Wanted) -> Served:
        if wanted.forget and not self._llm.reset_prefix_cache(reset_connector=wanted.forget == "rows"):
            raise RuntimeError("vLLM did not empty its cache: blocks are in use")
        engine = self._llm.llm_engine
        cached_before, cpu_before = self._cached(), time.process_time()
        tokens: dict[str, list[int]] = {}
        num_steps, first_token = 0, 0.0
        began, thread_began = time.perf_counter(), time.thread_time()
        for prompt in wanted.prompts:
            self._add(prompt, wanted, tokens)
        first = next(iter(tokens))
        while engine.has_unfinished_requests():
            outputs = engine.step()
            num_steps += bool(outputs)
            for output in outputs:
                tokens[output.request_id] = output.outputs[0].token_ids
            if not first_token and tokens[first]:
                first_token = time.perf_counter() - began
        seconds, thread_seconds = time.perf_counter() - began, time.thread_time() - thread_began
        self._finish_stores()
        return Served(
            tokens=[list(generated) for generated in tokens.values()],
            num_steps=num_steps,
            seconds=seconds,
            first_token_seconds=first_token,
            thread_seconds=thread_seconds,
            cpu_seconds=time.process_time() - cpu_before,
            cached={source: count - cached_before[source] for source, count in self._cached().items()},
        )

    def shutdown(self) -> None:
        self._llm.llm_engine.engine_core.shutdown()

    def _add(self, prompt: Sequence[int], wanted: Wanted, tokens: dict[str, list[int]]) -> None:
        self._num_requests += 1
        name = str(self._num_requests)
        tokens[name] = []
        sampling = self._vllm.SamplingParams(
            temperature=0,
            max_tokens=wanted.num_tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": wanted.tiers} if wanted.tiers else None,
        )
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def _finish_stores(self) -> None:
        core = self._llm.llm_engine.engine_core.engine_core
        while core.scheduler.connector is not None and core.scheduler.connector.has_pending_push_work():
            core.step()

    def _cached(self) -> dict[str, int]:
        cached = dict.fromkeys(_SOURCES.values(), 0)
        for metric in self._llm.get_metrics():
            if metric.name == "vllm:prompt_tokens_cached_by_source" and metric.labels["source"] in _SOURCES:
                cached[_SOURCES[metric.labels["source"]]] = metric.value
        return cached


def main() -> None:
    """Serve what is asked on standard input, in this process alone and with one processor left to the tiers."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.update(VLLM_LOGGING_STREAM="ext://sys.stderr", VLLM_CPU_KVCACHE_SPACE="1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    engine = _Engine(*json.loads(sys.argv[1]))
    print(f"{_READY}{engine.vocabulary_size()}", flush=True)
    for line in sys.stdin:
        print(f"{_SERVED}{json.dumps(asdict(engine.serve(Wanted(**json.loads(line)))))}", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
