# SPDX-License-Identifier: Apache-2.0
"""Embeddings of prompts by an engine without a draft, printed as JSON."""

import json
import sys


def main(asked):
    from vllm import LLM

    llm = LLM(runner="pooling", **asked["engine"])
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    outputs = llm.encode(prompts, pooling_task="embed", use_tqdm=False)
    print(json.dumps([output.outputs.data.tolist() for output in outputs]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
