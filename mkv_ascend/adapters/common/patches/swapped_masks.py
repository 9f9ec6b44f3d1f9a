# SPDX-License-Identifier: Apache-2.0
"""Allowed tokens of requests whose rows are swapped in a batch of model runner V1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="allowed tokens of swapped rows",
    target="vllm.v1.worker.gpu_input_batch:InputBatch.swap_states",
    why="vLLM swaps two rows of a tensor by one assignment. The first row has then been written "
    "when the second is read, so both requests are left with the allowed tokens of one: a request "
    "with allowed_token_ids gets other tokens, with drafts and without.",
    until="vLLM copies one of the rows first",
    test="tests/emulated/drafting/test_drafting_parameters.py::test_allowed_tokens",
)
def swap_both_masks(original: Callable[..., None], batch: Any, first: int, second: int) -> None:
    """Swap the rows ``first`` and ``second`` of everything, each mask with the other."""
    masks = batch.allowed_token_ids_mask_cpu_tensor
    of_first = None if masks is None else masks[first].clone()
    original(batch, first, second)
    if of_first is not None:
        masks[second] = of_first
