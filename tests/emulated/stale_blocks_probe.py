# SPDX-License-Identifier: Apache-2.0
"""Drafts twice, the second time in blocks full of NaN; prints as JSON what came of both."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main():
    from vllm import LLM, SamplingParams

    from mkv_ascend.testing import engine

    case = json.loads(sys.argv[1])
    engine._do_not_trace()
    llm = LLM(**case["engine"])
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]

    def counters():
        found = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        of_drafts = "vllm:spec_decode_num_{}_tokens"
        return [found[of_drafts.format(which)] for which in ("draft", "accepted")]

    def generate():
        before = counters()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        drafted, accepted = (new - old for new, old in zip(counters(), before, strict=True))
        tokens = [list(output.outputs[0].token_ids) for output in outputs]
        return {"tokens": tokens, "drafted": drafted, "accepted": accepted}

    result = {"clean": generate()}
    for memory in runner._cache_memory.raw:
        if memory is not None:
            memory.fill_(-1)  # of every type of floating point that is NaN
    result["stale"] = generate()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
