# SPDX-License-Identifier: Apache-2.0
"""An engine that sleeps between rounds of the same prompts; prints what each round made as JSON."""

import dataclasses
import json
import os
import sys


def main(asked):
    from tests.support import engine, recorded_proposals

    if not asked["engine"]["enforce_eager"]:
        engine._do_not_trace()
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        recorded_proposals.hand_over_drafts()

    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(**asked["engine"])
    proposals = recorded_proposals.of_scheduler(llm.llm_engine.engine_core.engine_core.scheduler)
    sampling = SamplingParams(
        temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]

    def graphs():
        return llm.collective_rpc("draft_replays")[0]

    def state():
        return {"bytes": torch.npu.memory_allocated(), "captured": graphs()["captured"]}

    def run():
        before, replays = len(proposals), graphs()["replays"]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "proposals": [dataclasses.asdict(proposal) for proposal in proposals[before:]],
            "replays": graphs()["replays"] - replays,
        }

    def sleep(level):
        awake = state()
        llm.sleep(level=level)
        asleep = state()
        if level == 2:
            # As a trainer does it: the cache has no memory while it sends weights.
            llm.wake_up(tags=["weights"])
            llm.collective_rpc("load_again")
            llm.wake_up(tags=["kv_cache"])
        else:
            llm.wake_up()
        return {"awake": awake, "asleep": asleep, "again": state()}

    answer = {"rounds": [run()], "sleeps": []}
    for level in asked["levels"]:
        answer["sleeps"].append(sleep(level))
        answer["rounds"].append(run())
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
