# SPDX-License-Identifier: Apache-2.0
"""Chunks of prompts, kept out of graphs of verify steps where models have recurrent layers."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.common.verifying_rows import in_prompts
from mkv_ascend.adapters.patching import patch


@patch(
    name="chunks of prompts are no verify steps",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner."
    "_determine_batch_execution_and_padding",
)
def no_verify_steps(
    original: Any,
    runner: Any,
    num_tokens: int,
    num_reqs: int,
    *args: Any,
    force_uniform_decode: bool | None = None,
    **kwargs: Any,
) -> Any:
    """As vllm-ascend's, but no batch with a chunk of a prompt is one of verify steps."""
    batch, model = runner.input_batch, runner.model_config
    if force_uniform_decode is None and (model.is_hybrid or model.is_attention_free):
        computed = batch.num_computed_tokens_cpu[:num_reqs]
        if in_prompts(computed, batch.num_prompt_tokens[:num_reqs]).any():
            force_uniform_decode = False
    return original(
        runner, num_tokens, num_reqs, *args, force_uniform_decode=force_uniform_decode, **kwargs
    )
