# SPDX-License-Identifier: Apache-2.0
"""Extracts hidden states with vLLM's connector for it, and prints as JSON how far off they are.

Argument: JSON of engine, layer, rounds (prompts that are served together) and max_tokens. The judge
is Hugging Face.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams


def main():
    asked = json.loads(sys.argv[1])
    llm = LLM(**asked["engine"])
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    sampling = SamplingParams(
        max_tokens=asked["max_tokens"], temperature=0.0, ignore_eos=True, detokenize=False
    )
    outputs = []
    # States are saved in the step after a request's last, so one more request ends them all.
    for prompts in [*asked["rounds"], [asked["rounds"][0][0][:4]]]:
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs += llm.generate(given, sampling, use_tqdm=False)
    outputs.pop()
    planned = getattr(runner, "cache_plan", None) is not None
    groups = len(runner.kv_cache_config.kv_cache_groups)
    # Written by threads of the connector, which end with the engine at the latest.
    core.shutdown()
    model = AutoModelForCausalLM.from_pretrained(
        asked["engine"]["model"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    errors, scales = [], []
    for output in outputs:
        prompt = output.prompt_token_ids
        saved = load_file(output.kv_transfer_params["hidden_states_path"])
        assert saved["token_ids"].tolist() == prompt
        with torch.no_grad():
            states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        expected = states[asked["layer"]][0]
        errors.append(float((saved["hidden_states"][:, 0].float() - expected).abs().max()))
        scales.append(float(expected.abs().max()))
    print(json.dumps({"planned": planned, "groups": groups, "errors": errors, "scales": scales}))


if __name__ == "__main__":
    main()
