# SPDX-License-Identifier: Apache-2.0
"""One rank of a data parallel engine with a draft; prints its tokens and acceptance as JSON."""

import json
import sys
import time


def main():
    from vllm import LLM, SamplingParams

    case = json.loads(sys.argv[1])
    llm = LLM(**case["engine"])
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    counters = {
        metric.name: getattr(metric, "value", getattr(metric, "values", None))
        for metric in llm.get_metrics()
    }
    result = {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "drafts": counters["vllm:spec_decode_num_drafts"],
        "accepted": counters["vllm:spec_decode_num_accepted_tokens_per_pos"],
    }
    print(json.dumps(result), flush=True)
    # The other rank may have steps to go, for which this one must be there.
    time.sleep(case["linger"])


if __name__ == "__main__":
    main()
