# SPDX-License-Identifier: Apache-2.0
"""Runs an engine, aborts requests between its steps, and prints the others' tokens as JSON."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main():
    from vllm import LLM, SamplingParams

    case = json.loads(sys.argv[1])
    engine = LLM(**case["engine"]).llm_engine
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    for number, prompt in enumerate(case["prompts"]):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, sampling)
    tokens, cached, steps = {}, {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
                cached[output.request_id] = output.num_cached_tokens or 0
        steps += 1
        aborted = case["aborts"].get(str(steps))
        if aborted:
            engine.abort_request([str(number) for number in aborted])
    counters = {
        metric.name: getattr(metric, "value", getattr(metric, "values", None))
        for metric in engine.get_metrics()
    }
    result = {
        "tokens": tokens,
        "cached": cached,
        "steps": steps,
        "drafts": counters["vllm:spec_decode_num_drafts"],
        "accepted": counters["vllm:spec_decode_num_accepted_tokens_per_pos"],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
