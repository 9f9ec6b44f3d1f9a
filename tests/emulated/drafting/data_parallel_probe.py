# SPDX-License-Identifier: Apache-2.0
"""Data parallel engines with a draft, one process each; prints what each made as JSON.

Each rank has rounds of prompts. A round ends on all ranks when it ends on the last.
"""

import dataclasses
import json
import multiprocessing
import os
import sys


def run_rank(asked, rank, answers, everyone_is_done):
    from tests.support import engine, recorded_proposals

    variables = {"RANK": rank, "RANK_LOCAL": rank, "SIZE": len(asked["ranks"])}
    variables |= {"MASTER_IP": "127.0.0.1", "MASTER_PORT": asked["port"]}
    os.environ.update({f"VLLM_DP_{name}": str(value) for name, value in variables.items()})
    if not (asked["engine"]["enforce_eager"] or asked.get("traced")):
        engine._do_not_trace()
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        recorded_proposals.hand_over_drafts()
    recorded_proposals.reach_into_engine_core()

    from vllm import LLM, SamplingParams

    llm = LLM(**asked["engine"])
    new_proposals = recorded_proposals.since_last_asked(llm)
    tokens, proposals = [], []
    for case in asked["ranks"][rank]:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        tokens.append([list(output.outputs[0].token_ids) for output in outputs])
        proposals += new_proposals()
    counters = {
        metric.name: getattr(metric, "value", getattr(metric, "values", None))
        for metric in llm.get_metrics()
    }
    answers[rank] = {
        "tokens": tokens,
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "layers": llm.collective_rpc("attention_layers")[-1],
        "replays": llm.collective_rpc("draft_replays")[-1]["replays"],
        "drafts": counters["vllm:spec_decode_num_drafts"],
        "accepted": counters["vllm:spec_decode_num_accepted_tokens_per_pos"],
    }
    # The other rank may have steps to go, for which this one must be there.
    everyone_is_done.wait(timeout=60)
    # An engine core in a process of its own would be waited for, and nobody has told it to end.
    llm.llm_engine.engine_core.shutdown()


def main(asked):
    context = multiprocessing.get_context("fork")
    everyone_is_done = context.Barrier(len(asked["ranks"]))
    with context.Manager() as manager:
        answers = manager.dict()
        ranks = [
            context.Process(target=run_rank, args=(asked, rank, answers, everyone_is_done))
            for rank in range(len(asked["ranks"]))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        print(json.dumps([answers[rank] for rank in range(len(ranks))]), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
