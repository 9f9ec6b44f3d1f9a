# SPDX-License-Identifier: Apache-2.0
"""Serves prompts as tokens or as embeddings, round by round; prints JSON.

Argument: JSON of engine, rounds (for each a list of prompts, each with ``tokens`` and whether it is
given ``as_embeddings``) and max_tokens. Prints for each round the answers' tokens, and how many
draft tokens were accepted by position.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams


def main():
    from tests.support.engine import _metrics

    asked = json.loads(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(asked["engine"]["model"], dtype=torch.float32)
    embed = model.get_input_embeddings()
    llm = LLM(**asked["engine"])
    sampling = SamplingParams(
        temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True, detokenize=False
    )

    def given(prompt):
        if not prompt["as_embeddings"]:
            return {"prompt_token_ids": prompt["tokens"]}
        with torch.no_grad():
            states = embed(torch.tensor(prompt["tokens"]))
        return {"prompt_embeds": states.to(llm.model_config.dtype)}

    rounds = []
    for prompts in asked["rounds"]:
        outputs = llm.generate([given(prompt) for prompt in prompts], sampling, use_tqdm=False)
        rounds.append(
            {
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "accepted": _metrics(llm)["vllm:spec_decode_num_accepted_tokens_per_pos"],
            }
        )
    print(json.dumps(rounds))


if __name__ == "__main__":
    main()
