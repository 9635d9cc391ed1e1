"""One life of an engine: serves all conversations with vLLM, turn by turn, and prints a line of JSON for each.

`run_conversations.py` starts it with the life as its argument, in JSON: the keys are the parameters of `serve`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from conversations import CONVERSATIONS

ANSWER_TOKENS = 24
BLOCK_TOKENS = 32
SOURCES = ("device", "host", "disk", "external_unspecified")
"""As vLLM names them; the last one is what it has no name for, here the bucket."""


def serve(model: str, dtype: str, device_blocks: int, tiering: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Serve each conversation's first turn, then each one's second, and so on; yield what each turn has cost and said.

    Args:
        model: folder or name.
        dtype: of weights and KV.
        device_blocks: blocks of KV on the device.
        tiering: the configuration of the tiers; None: no tiering.
    """
    vllm = importlib.import_module("vllm")  # slow to load
    llm = vllm.LLM(
        model,
        dtype=dtype,
        enforce_eager=True,
        disable_log_stats=False,
        block_size=BLOCK_TOKENS,
        max_model_len=(device_blocks - 1) * BLOCK_TOKENS,
        num_gpu_blocks_override=device_blocks,
        kv_transfer_config=None if tiering is None else connector(tiering),
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
    llm.generate("Warm up.", sampling, use_tqdm=False)
    texts = [f"Here is a text.\n{document}\n" for document, _ in CONVERSATIONS]
    before = cached_by_source(llm)
    for turn in range(len(CONVERSATIONS[0][1])):
        for number, (_, questions) in enumerate(CONVERSATIONS):
            texts[number] += f"Question: {questions[turn]}\nAnswer:"
            (output,) = llm.generate(texts[number], sampling, use_tqdm=False)
            answer = output.outputs[0].text
            texts[number] += f"{answer}\n"
            after = cached_by_source(llm)
            yield {
                "turn": turn + 1,
                "conversation": number + 1,
                "prompt_tokens": len(output.prompt_token_ids),
                "cached": {source: after[source] - before[source] for source in SOURCES},
                "first_token_seconds": output.metrics.first_token_latency,
                "answer": answer,
            }
            before = after
    llm.llm_engine.engine_core.shutdown()  # ends what the tiers still write


def connector(tiering: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's ``kv_transfer_config`` with our tiers."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "KVTieringSpec", "spec_module_path": "tiering_vllm", **tiering},
    }


def cached_by_source(llm: Any) -> dict[str, int]:
    """Return how many prompt tokens were not computed so far, by where their KV came from."""
    counted = dict.fromkeys(SOURCES, 0)
    for metric in llm.get_metrics():
        if metric.name == "vllm:prompt_tokens_cached_by_source" and metric.labels["source"] in counted:
            counted[metric.labels["source"]] = metric.value
    return counted


def main() -> None:
    """Serve one life in this process alone, with one processor left to the tiers."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) - 1)))
    for turn in serve(**json.loads(sys.argv[1])):
        print("TURN", json.dumps(turn), flush=True)


if __name__ == "__main__":
    main()
