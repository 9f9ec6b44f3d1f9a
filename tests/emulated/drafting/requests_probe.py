# SPDX-License-Identifier: Apache-2.0
"""Runs one engine on requests of several sorts at once, and prints the results as JSON.

Sorts: plain, with an adapter (LoRA) on the target, with a grammar, and aborted inside a proposal.
"""

import dataclasses
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from tests.support import engine, graph_replays, recorded_proposals


def sampling_of(request):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    grammar = request.get("grammar")
    return SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        ignore_eos=grammar is None,
        detokenize=False,
        structured_outputs=None if grammar is None else StructuredOutputsParams(**grammar),
    )


def add(llm, request_id, request, adapters):
    """``adapted``: the number of its adapter, from 1; 0 or nothing for none."""
    from vllm.lora.request import LoRARequest

    number = request.get("adapted", 0)
    chosen = LoRARequest(f"adapter {number}", number, adapters[number - 1]) if number else None
    prompt = {"prompt_token_ids": request["prompt"]}
    llm.llm_engine.add_request(request_id, prompt, sampling_of(request), lora_request=chosen)


def run(llm, requests, adapters):
    """All requests at once; one with ``abort_after`` is aborted once it has that many tokens.

    Returns the tokens of each, of aborted ones those that were there.
    """
    tokens = {str(index): [] for index in range(len(requests))}
    aborted = set()
    for request_id, request in zip(tokens, requests, strict=True):
        add(llm, request_id, request, adapters)
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            # vLLM numbers requests on inside; what it gives back is what it was given.
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            limit = requests[int(output.request_id)].get("abort_after")
            reached = limit is not None and len(tokens[output.request_id]) >= limit
            if reached and output.request_id not in aborted:
                aborted.add(output.request_id)
                llm.llm_engine.abort_request([output.request_id])
    return list(tokens.values())


def main(asked):
    from vllm import LLM

    in_workers = asked["engine"].get("worker_extension_cls") == recorded_proposals.IN_WORKERS
    on_v2 = os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1"
    if on_v2 and not in_workers and not asked["engine"].get("async_scheduling"):
        recorded_proposals.hand_over_drafts()
    llm = LLM(**asked["engine"])
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    # Of graphs with adapters.
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    replays = graph_replays.of_target(executor)
    host_replays = graph_replays.of_host_proposals(executor)
    free = pool.get_num_free_blocks()
    if in_workers:
        llm.collective_rpc("record_proposals")
    proposals = recorded_proposals.of_scheduler(scheduler)
    tokens = run(llm, asked["requests"], asked["adapters"])
    if in_workers:
        longest = max(request["max_tokens"] for request in asked["requests"])
        proposals = recorded_proposals.of_workers(llm, longest)
    metrics = engine._metrics(llm)
    answer = {
        "tokens": tokens,
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "accepted_per_position": metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos", []),
        "num_drafts": metrics.get("vllm:spec_decode_num_drafts", 0),
        "draft_replays": engine._draft_replays(llm)["replays"] + len(host_replays),
        "target_replays": sum(graph.num_active_loras > 0 for graph in replays),
        "blocks_kept": free - pool.get_num_free_blocks(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
