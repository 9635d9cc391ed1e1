"""Runs vLLM engines one after another in this process, as the plan on standard input says; prints what they said.

The plan is a list of engines: ``{"llm": arguments of LLM, "tiering": extra configuration or null, "rounds": [...]}``,
a round being ``{"prompts": [[token, ...], ...], "max_tokens": n, "reset": which caches to empty before it}``. In place
of its prompts, a round may have ``"continues": [token, ...]``: what was said in the round before, and then these. For
each round one line of JSON comes out, and the word ``DONE`` at the end.

A round with a ``pause`` comes to a halt in the first step after which a tier's counter has come so far (``{"tier":
name, "counter": name, "at_least": n}``), or when it has come to its end (``{"at_end": true}``): a line ``PAUSE`` comes
out, and it goes on after a line has come in. At such a counter named ``abort``, every second request is aborted; a
round with ``{"times": n, "until": such a counter}`` is repeated.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

_SOURCES = "vllm:prompt_tokens_cached_by_source"


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
        prompts: list[list[int]] = []
        answer: dict[str, Any] = {}
        for number, each in enumerate(engine["rounds"]):
            if "continues" in each:
                so_far = zip(prompts, answer["tokens"], strict=True)
                prompts = [[*asked, *said, *each["continues"]] for asked, said in so_far]
            else:
                prompts = each["prompts"]
            for _ in range(each.get("times", 1)):
                answer = play(llm, prompts, each)
                if "until" in each and has_come(llm, each["until"]):
                    break
            print("ROUND", json.dumps({"round": number, **answer}), flush=True)
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
    print("DONE", flush=True)
    sys.stdin.read()


def play(llm: Any, prompts: list[list[int]], each: dict[str, Any]) -> dict[str, Any]:
    """Generate greedily for the prompts of one round, then let all offloading end."""
    from vllm import SamplingParams

    if each.get("reset"):
        assert llm.reset_prefix_cache(reset_connector=each["reset"] == "rows")
    pause = each.get("pause", {})
    paused_with: list[int] = []
    if "counter" in pause:
        once(llm, pause, partial(wait_while_running, llm, paused_with))
    if "abort" in each:
        once(llm, each["abort"], partial(abort_every_second, llm))
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(temperature=0, max_tokens=each.get("max_tokens", 16), ignore_eos=True, detokenize=False),
        use_tqdm=False,
    )
    answer: dict[str, Any] = {
        "tokens": [output.outputs[0].token_ids for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
        "paused_with": paused_with,
        "stats": {},
        "content": {},
    }
    if llm.llm_engine.engine_core.engine_core.scheduler.connector is not None:
        settle(llm)
        stats = dict(manager(llm).get_stats())
        answer |= {"stats": stats, "content": content(manager(llm)) if each.get("list") else {}}
    if pause.get("at_end"):
        wait_for_leave()
    metrics = llm.get_metrics()
    return {
        **answer,
        "sources": {each.labels["source"]: each.value for each in metrics if each.name == _SOURCES},
        "preemptions": next(each.value for each in metrics if each.name == "vllm:num_preemptions"),
        "metrics": {
            " ".join([metric.name, *filter(None, [metric.labels.get("tier")])]): metric.value
            for metric in metrics
            if "tiering" in metric.name
        },
    }


def once(llm: Any, wanted: dict[str, Any], act: Callable[[], None]) -> None:
    """Act after the first step after which a tier's counter has come so far."""
    engine = llm.llm_engine

    def step() -> Any:
        outputs = type(engine).step(engine)
        if has_come(llm, wanted):
            del engine.step
            act()
        return outputs

    engine.step = step


def wait_while_running(llm: Any, paused_with: list[int]) -> None:
    """Halt, and note how many requests are unfinished."""
    paused_with.append(llm.llm_engine.get_num_unfinished_requests())
    wait_for_leave()


def abort_every_second(llm: Any) -> None:
    """Abort every second request that is not finished."""
    llm.llm_engine.abort_request(list(llm.llm_engine.output_processor.external_req_ids)[::2])


def has_come(llm: Any, wanted: dict[str, Any]) -> bool:
    """Whether a tier's counter has come so far."""
    stats = manager(llm).get_stats()["tiers"][wanted["tier"]]
    return bool(stats[wanted["counter"]] >= wanted["at_least"])


def manager(llm: Any) -> Any:
    """Return the tiering manager of an engine."""
    return llm.llm_engine.engine_core.engine_core.scheduler.connector.connector_scheduler.manager.tiering


def wait_for_leave() -> None:
    """Halt until a line comes in."""
    print("PAUSE", flush=True)
    sys.stdin.readline()


def content(tiering: Any) -> dict[str, list[str]]:
    """Return the keys, in hex, that each tier can be asked for, from the tiers themselves."""
    rows = tiering.primary_tier.rows
    found = {"cpu": [key.hex() for key, row in rows.index.items() if rows.table.ref_cnt[row] >= 0]}
    for attached in tiering._tiers:
        worker = attached._tier
        found[attached.name] = [key.hex() for key in worker._loop.wait_for(listed(worker._tier))]
    return found


async def listed(tier: Any) -> list[bytes]:
    """Return all keys of a tier."""
    return [key async for key in tier.keys()]  # noqa: SIM118  (a tier is no mapping)


def settle(llm: Any) -> None:
    """Step until every copy and every job of the tiers has ended."""
    core = llm.llm_engine.engine_core.engine_core
    while core.scheduler.connector.has_pending_push_work():
        core.step()


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
