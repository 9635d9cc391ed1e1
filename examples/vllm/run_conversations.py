"""Serves conversations with vLLM: without tiering, with it, and after a restart; shows what each turn has cost.

    .venv-vllm/bin/python examples/vllm/run_conversations.py --model FOLDER [--config tiering.yaml]

The device has room for little more than one conversation, as a busy engine has, so each turn finds its KV below or
computes it. Weights and KV are float32: in bf16 rounding depends on how many tokens are computed at a time, and now and
then that decides between two words, with or without tiering.
The exit code is 1 if an answer differs from the one without tiering.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conversations import CONVERSATIONS

ANSWER_TOKENS = 24
BLOCK_TOKENS = 32
SOURCES = ("device", "host", "disk", "external_unspecified")


def main() -> int:
    """Play the three lives of the engine in processes of their own, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a model, or its name")
    parser.add_argument("--config", type=Path, help="configuration of the tiers; default: CPU rows and a disk")
    parser.add_argument("--device-blocks", type=int, default=16, help=f"blocks of {BLOCK_TOKENS} tokens on the device")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play is not None:
        play(options.model, options.device_blocks, json.loads(options.play))
        return 0
    with tempfile.TemporaryDirectory(prefix="tiering-vllm-") as folder:
        disk = {"type": "disk", "root_dirs": [folder], "capacity": "2GiB"}
        tiering: dict[str, Any] = {"cpu_bytes_to_use": "512MiB", "secondary_tier_configs": [disk]}
        if options.config is not None:
            tiering = {"config_file": str(options.config.resolve())}
        lives = {"without tiering": None, "with tiering": tiering, "after a restart": tiering}
        said = {title: turns_of(options, settings) for title, settings in lives.items()}
    return show(said)


def turns_of(options: argparse.Namespace, tiering: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Play all conversations in a new process."""
    command = [sys.executable, __file__, "--model", options.model, "--device-blocks", str(options.device_blocks)]
    done = subprocess.run([*command, "--play", json.dumps(tiering)], stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line.removeprefix("TURN ")) for line in done.stdout.splitlines() if line.startswith("TURN ")]


def play(model: str, device_blocks: int, tiering: dict[str, Any] | None) -> None:
    """Serve each conversation's first turn, then each one's second, and so on; print one line of JSON per turn."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    vllm = importlib.import_module("vllm")  # in this process only: slow to load

    connector = None
    if tiering is not None:
        connector = {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "spec_name": "KVTieringSpec",
                "spec_module_path": "tiering_vllm",
                **tiering,
            },
        }
    llm = vllm.LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        disable_log_stats=False,
        block_size=BLOCK_TOKENS,
        max_model_len=(device_blocks - 1) * BLOCK_TOKENS,
        num_gpu_blocks_override=device_blocks,
        kv_transfer_config=connector,
    )
    sampling = vllm.SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS)
    llm.generate("Warm up.", sampling, use_tqdm=False)
    texts = [f"Here is a text.\n{document}\n" for document, _ in CONVERSATIONS]
    before = cached_by_source(llm)
    for turn in range(max(len(questions) for _, questions in CONVERSATIONS)):
        for number, (_, questions) in enumerate(CONVERSATIONS):
            texts[number] += f"Question: {questions[turn]}\nAnswer:"
            (output,) = llm.generate(texts[number], sampling, use_tqdm=False)
            after = cached_by_source(llm)
            print(
                "TURN",
                json.dumps(
                    {
                        "turn": turn + 1,
                        "conversation": number + 1,
                        "prompt_tokens": len(output.prompt_token_ids),
                        "ttft": output.metrics.first_token_latency,
                        "cached": {source: after[source] - before[source] for source in SOURCES},
                        "text": output.outputs[0].text,
                    }
                ),
                flush=True,
            )
            before = after
            texts[number] += f"{output.outputs[0].text}\n"
    llm.llm_engine.engine_core.shutdown()


def cached_by_source(llm: Any) -> dict[str, int]:
    """Return how many prompt tokens were not computed so far, by where their KV came from."""
    counted = dict.fromkeys(SOURCES, 0)
    for metric in llm.get_metrics():
        if metric.name == "vllm:prompt_tokens_cached_by_source" and metric.labels["source"] in counted:
            counted[metric.labels["source"]] = metric.value
    return counted


def show(said: dict[str, list[dict[str, Any]]]) -> int:
    """Print a line per turn and one per life; return 1 if an answer differs."""
    without = next(iter(said.values()))
    num_different = 0
    for title, turns in said.items():
        print(f"\n== {title}")
        print("turn  talk  prompt   TTFT ms   device     CPU    disk   other   answer")
        for each, reference in zip(turns, without, strict=True):
            is_equal = each["text"] == reference["text"]
            num_different += not is_equal
            cached = "".join(f"{each['cached'][source]:8}" for source in SOURCES)
            answer = "equal" if is_equal else "DIFFERENT"
            print(
                f"{each['turn']:4}{each['conversation']:6}{each['prompt_tokens']:8}{each['ttft'] * 1000:10.0f} {cached}"
                f"   {answer}"
            )
        mean, base = (sum(each["ttft"] for each in life) / len(life) for life in (turns, without))
        print(f"mean time to first token: {mean * 1000:.0f} ms, {mean / base:.2f} of that without tiering")
    print(f"\n{'all answers are equal' if not num_different else f'{num_different} answers DIFFER'}")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
