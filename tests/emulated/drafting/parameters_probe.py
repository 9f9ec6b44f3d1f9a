# SPDX-License-Identifier: Apache-2.0
"""Runs one engine on requests with sampling parameters of their own; prints JSON."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def values_of(position):
    """Token -> logarithm of its probability at one position."""
    return {token: value.logprob for token, value in position.items()}


def sampling_of(fields):
    """``SamplingParams`` of these fields; a grammar is a dict of its own fields."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if (grammar := fields.get("structured_outputs")) is not None:
        fields = {**fields, "structured_outputs": StructuredOutputsParams(**grammar)}
    return SamplingParams(**fields)


def main(asked):
    from vllm import LLM

    from tests.support.engine import _metrics

    llm = LLM(**asked["engine"])
    prompts = [{"prompt_token_ids": request["prompt"]} for request in asked["requests"]]
    sampling = [sampling_of(request["sampling"]) for request in asked["requests"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    metrics = _metrics(llm)
    answers = [
        {
            "tokens": [list(each.token_ids) for each in output.outputs],
            "texts": [each.text for each in output.outputs],
            "logprobs": [
                [values_of(position) for position in each.logprobs or ()] for each in output.outputs
            ],
            "prompt_logprobs": [
                values_of(position) for position in (output.prompt_logprobs or ())[1:]
            ],
        }
        for output in outputs
    ]
    counts = {
        "drafts": metrics["vllm:spec_decode_num_drafts"],
        "accepted": metrics["vllm:spec_decode_num_accepted_tokens_per_pos"],
    }
    print(json.dumps({"answers": answers, **counts}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
