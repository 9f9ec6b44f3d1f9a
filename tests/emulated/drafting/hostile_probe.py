# SPDX-License-Identifier: Apache-2.0
"""Runs one engine with requests that no other request may notice; prints JSON."""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def tokens_of(engine, *, until=None):
    """Name -> tokens of the requests that end; ``until``: so many steps."""
    found, steps = {}, 0
    while engine.has_unfinished_requests() and steps != until:
        steps += 1
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
    return found


def main(asked):
    from vllm import LLM, SamplingParams

    from tests.support.engine import _metrics

    llm = LLM(**asked["engine"])
    engine = llm.llm_engine
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]

    def add(name, prompt, **sampling):
        fields = {"temperature": 0.0, "max_tokens": asked["tokens"], "ignore_eos": True}
        engine.add_request(name, prompt, SamplingParams(**{**fields, **sampling}))

    def seeded():
        add("seeded", prompts[0], temperature=1.0, seed=5)
        return tokens_of(engine)["seeded"]

    alone = seeded()
    for number, prompt in enumerate(prompts):
        add(str(number), prompt)
    tokens_of(engine, until=3)
    beside = seeded()

    for number, prompt in enumerate(prompts):
        add(str(number), prompt, **asked["greedy"][number])
        add(f"hostile {number}", prompt, temperature=1.0)
    scheduler = engine.engine_core.engine_core.scheduler
    values = iter(asked["values"] * len(prompts))
    for name, request in scheduler.requests.items():
        if name.startswith("hostile"):
            field, value = next(values)
            setattr(request.sampling_params, field, value)
    judged = tokens_of(engine)

    refused = []
    for fields in asked["refused"]:
        biases = fields.get("logit_bias")
        if biases:
            fields = {**fields, "logit_bias": {int(token): one for token, one in biases.items()}}
        try:
            add("refused", prompts[0], **fields)
            refused.append("accepted")
            engine.abort_request(["refused"])
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    metrics = _metrics(llm)
    counts = {
        "drafts": metrics["vllm:spec_decode_num_drafts"],
        "accepted": metrics["vllm:spec_decode_num_accepted_tokens"],
    }
    tokens = [judged[str(number)] for number in range(len(prompts))]
    print(
        json.dumps(
            {"tokens": tokens, "alone": alone, "beside": beside, "refused": refused, **counts}
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
