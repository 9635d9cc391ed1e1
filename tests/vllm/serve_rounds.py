"""Runs vLLM engines one after another in this process, as the plan on standard input says; prints what they said.

The plan is a list of engines: ``{"llm": arguments of LLM, "tiering": extra configuration or null, "rounds": [...]}``,
a round being ``{"prompts": [[token, ...], ...], "max_tokens": n, "reset": which caches to empty before it}``. For each
round one line of JSON comes out, and the word ``DONE`` at the end.
"""

from __future__ import annotations

import gc
import json
import sys
from typing import Any

import torch


def main() -> None:
    """Run the plan."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    for engine in json.loads(sys.stdin.readline()):
        arguments = dict(engine["llm"])
        if engine.get("tiering") is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "spec_name": "KVTieringSpec",
                    "spec_module_path": "tiering_vllm",
                    **engine["tiering"],
                },
            }
        llm = LLM(skip_tokenizer_init=True, enforce_eager=True, disable_log_stats=False, **arguments)
        spoil(engine.get("spoil_loads", False))
        for number, each in enumerate(engine["rounds"]):
            print("ROUND", json.dumps({"round": number, **play(llm, each)}), flush=True)
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    print("DONE", flush=True)
    sys.stdin.read()


def play(llm: Any, each: dict[str, Any]) -> dict[str, Any]:
    """Generate greedily for the prompts of one round, then let all offloading end."""
    from vllm import SamplingParams

    if each.get("reset"):
        assert llm.reset_prefix_cache(reset_connector=each["reset"] == "rows")
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in each["prompts"]],
        SamplingParams(temperature=0, max_tokens=each.get("max_tokens", 16), ignore_eos=True, detokenize=False),
        use_tqdm=False,
    )
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    stats: dict[str, Any] = {}
    if scheduler.connector is not None:
        settle(llm)
        stats = dict(scheduler.connector.connector_scheduler.manager.tiering.get_stats())
    return {
        "tokens": [output.outputs[0].token_ids for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "stats": stats,
        "sources": sources(llm),
        "metrics": {
            " ".join([metric.name, *filter(None, [metric.labels.get("tier")])]): metric.value
            for metric in llm.get_metrics()
            if "tiering" in metric.name
        },
    }


def settle(llm: Any) -> None:
    """Step until every copy and every job of the tiers has ended."""
    core = llm.llm_engine.engine_core.engine_core
    while core.scheduler.connector.has_pending_push_work():
        core.step()


def sources(llm: Any) -> dict[str, int]:
    """Return the prompt tokens so far that were not computed, by where their KV came from."""
    name = "vllm:prompt_tokens_cached_by_source"
    return {metric.labels["source"]: metric.value for metric in llm.get_metrics() if metric.name == name}


def spoil(wanted: bool) -> None:
    """Make loads deliver zeros, or the truth again."""
    from tiering_vllm.v030.worker import TieringWorkerAdapter

    from tiering.transfer_specs import GPULoadStoreSpec

    original = TieringWorkerAdapter.__dict__.get("_unspoilt", TieringWorkerAdapter.get_finished)
    TieringWorkerAdapter._unspoilt = original

    def get_finished(self: Any) -> Any:
        loads = {
            job: t.spec[1].block_ids for job, t in self._transfers.items() if isinstance(t.spec[1], GPULoadStoreSpec)
        }
        results = original(self)
        for result in results:
            for tensor in self._load_handler.dst_tensors if result.job_id in loads else ():
                tensor[torch.from_numpy(loads[result.job_id])] = 0
        return results

    TieringWorkerAdapter.get_finished = get_finished if wanted else original


if __name__ == "__main__":
    main()
