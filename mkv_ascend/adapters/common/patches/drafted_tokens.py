# SPDX-License-Identifier: Apache-2.0
"""The draft tokens that penalties and bad words count, where scheduling is asynchronous.

A row of a verify step stands behind the draft tokens of the rows before it, and its penalties count
them. The scheduler does not know these tokens yet and hands out placeholders.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import record

DRAFTED = record(
    name="draft tokens that penalties count",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner._sample",
    reads=(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_draft_token_ids_cpu",
        "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_spec_token_ids",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._copy_draft_token_ids_to_cpu",
    ),
    why="vLLM's runner puts the tokens that were drafted in the place of the scheduler's "
    "placeholders before it verifies them, vllm-ascend's never does. With asynchronous scheduling "
    "penalties and bad words then leave out the drafts before a row, and tokens are wrong.",
    until="vllm-ascend's runner calls update_async_spec_token_ids",
    test="tests/emulated/drafting/test_drafting_parameters.py"
    "::test_penalties_and_bad_words_with_asynchronous_scheduling",
)


def name_drafts(runner: Any) -> None:
    """Let sampling know the tokens that ``runner`` drafted last, if it copied them to the host.

    It does so where penalties or bad words ask for them.
    """
    if not runner.use_async_scheduling or runner._draft_token_req_ids is None:
        return
    drafted, _ = runner._get_draft_token_ids_cpu()
    runner.input_batch.update_async_spec_token_ids(drafted)
