# SPDX-License-Identifier: Apache-2.0
"""An engine whose target or draft gets other weights while requests run; prints JSON of it.

As trainers do it that let requests run on: pause, load, forget all cached keys, resume.
"""

import dataclasses
import json
import os
import sys


def main(asked):
    from tests.support import engine, recorded_proposals, reloading

    engine._do_not_trace()
    if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
        recorded_proposals.hand_over_drafts()

    from vllm import LLM, SamplingParams

    llm = LLM(**asked["engine"])
    core = llm.llm_engine.engine_core.engine_core
    proposals = recorded_proposals.of_scheduler(core.scheduler)
    sampling = SamplingParams(
        temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
    )
    names = [str(number) for number in range(len(asked["prompts"]))]
    for name, prompt in zip(names, asked["prompts"], strict=True):
        llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
    tokens = {}

    def step():
        for output in llm.llm_engine.step():
            tokens[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)

    for _ in range(asked["steps"]):
        step()
    before, proposed = dict(tokens), len(proposals)
    core.pause_scheduler("keep", clear_cache=False)
    if "sent" in asked:
        refused = reloading.send_to_draft(llm, asked["path"], **asked["sent"])
    else:
        refused = None
        llm.collective_rpc("load_again", args=(asked["path"],))
    core.reset_prefix_cache(reset_running_requests=True)
    core.resume_scheduler()
    while llm.llm_engine.has_unfinished_requests():
        step()
    answer = {
        "before": [before.get(name, []) for name in names],
        "tokens": [tokens[name] for name in names],
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "proposed_before": proposed,
        "refused": refused,
        "replays": llm.collective_rpc("draft_replays")[0]["replays"],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
