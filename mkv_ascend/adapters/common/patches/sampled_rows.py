# SPDX-License-Identifier: Apache-2.0
"""What the rows of a batch of model runner V1 are sampled by.

A row of a verify step stands behind the draft tokens of the rows before it, and its penalties count
them. The scheduler does not know these tokens yet where it works ahead, and hands out placeholders.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="what rows are sampled by",
    target=(
        "vllm.v1.worker.gpu_input_batch:InputBatch.swap_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sample",
    ),
    reads=(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_draft_token_ids_cpu",
        "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_spec_token_ids",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._copy_draft_token_ids_to_cpu",
    ),
    why="vLLM swaps two rows of a tensor by one assignment. The first row has then been written "
    "when the second is read, so both requests are left with the allowed tokens of one: a request "
    "with allowed_token_ids gets other tokens, with drafts and without. And vLLM's runner puts the "
    "tokens that were drafted in the place of the scheduler's placeholders before it verifies "
    "them, vllm-ascend's never does: with asynchronous scheduling penalties and bad words then "
    "leave out the drafts before a row.",
    until="vLLM copies one of the rows first, and vllm-ascend's runner calls "
    "update_async_spec_token_ids",
    test=(
        "tests/emulated/drafting/test_drafting_parameters.py::test_allowed_tokens",
        "tests/emulated/drafting/test_drafting_parameters.py"
        "::test_penalties_and_bad_words_with_asynchronous_scheduling",
    ),
)
def swap_both_masks(original: Callable[..., None], batch: Any, first: int, second: int) -> None:
    """Swap the rows ``first`` and ``second`` of everything, each mask with the other."""
    masks = batch.allowed_token_ids_mask_cpu_tensor
    of_first = None if masks is None else masks[first].clone()
    original(batch, first, second)
    if of_first is not None:
        masks[second] = of_first


def name_drafts(runner: Any) -> None:
    """Let sampling know the tokens that ``runner`` drafted last, if it copied them to the host.

    It does so where penalties or bad words ask for them.
    """
    if not runner.use_async_scheduling or runner._draft_token_req_ids is None:
        return
    drafted, _ = runner._get_draft_token_ids_cpu()
    runner.input_batch.update_async_spec_token_ids(drafted)
