# SPDX-License-Identifier: Apache-2.0
"""Runs an engine in graphs, then breaks those of its draft, and prints as JSON what came of it."""

import json
import os
import sys
from unittest import mock

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def lengths_frozen():
    """While inside, each captured launch has the same lengths in every replay: of one token."""
    from mkv_ascend.drafting.updates import Updates

    run = Updates.run

    def frozen(updates, stream, context, config, lengths):
        of_one = [[min(length, 1) for length in of_pass] for of_pass in lengths]
        run(updates, stream, context, config, of_one)

    return mock.patch.object(Updates, "run", frozen)


def move_token_ids(drafter):
    """Give the draft's token ids another place than its graphs know, and free the old one."""
    drafter.input_ids = drafter.input_ids.clone()


def main():
    from vllm import LLM, SamplingParams

    from mkv_ascend.testing import engine

    case = json.loads(sys.argv[1])
    engine._do_not_trace()
    llm = LLM(**case["engine"])
    drafter = (
        llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    ).model_runner.drafter
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]

    def counters():
        found = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
        of_drafts = "vllm:spec_decode_num_{}_tokens"
        return [found[of_drafts.format(which)] for which in ("draft", "accepted")]

    def generate():
        drafted, accepted = counters()
        replays = drafter.graphs.replays
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        now = counters()
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "drafted": now[0] - drafted,
            "accepted": now[1] - accepted,
            "replays": drafter.graphs.replays - replays,
        }

    result = {"whole": generate()}
    with lengths_frozen():
        result["frozen"] = generate()
    move_token_ids(drafter)
    try:
        result["moved"] = generate()
    except RuntimeError as error:
        result["moved"] = str(error)
    print(json.dumps(result), flush=True)
    # The stream of the replay that failed never ends.
    os._exit(0)


if __name__ == "__main__":
    main()
