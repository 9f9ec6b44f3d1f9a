# SPDX-License-Identifier: Apache-2.0
"""What the rows of a batch of model runner V1 are sampled by.

A row of a verify step stands behind the draft tokens of the rows before it, and its penalties count
them. The scheduler does not know these tokens yet where it works ahead, and hands out placeholders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from vllm.triton_utils import HAS_TRITON
from vllm.v1.sample.logits_processor import MinTokensLogitsProcessor
from vllm.v1.sample.rejection_sampler import RejectionSampler

from mkv_ascend.adapters.patching import patch


@patch(
    name="what rows are sampled by",
    target=(
        "vllm.v1.worker.gpu_input_batch:InputBatch.swap_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._sample",
        "vllm_ascend.sample.rejection_sampler:expand_pytorch",
        "vllm_ascend.sample.rejection_sampler:sample_recovered_tokens",
    ),
    reads=(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._sample",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_draft_token_ids_cpu",
        "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_spec_token_ids",
        "vllm.v1.worker.gpu_input_batch:InputBatch.update_async_output_token_ids",
        "vllm.v1.worker.gpu_input_batch:InputBatch.set_async_sampled_token_ids",
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor.add_request",
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor.apply",
        "vllm.v1.sample.logits_processor.builtin:MinTokensLogitsProcessor.apply_with_spec_decode",
        "vllm.v1.sample.rejection_sampler:RejectionSampler.apply_penalties",
        "vllm_ascend.sample.rejection_sampler:AscendRejectionSampler.apply_penalties",
        "vllm_ascend.sample.rejection_sampler:AscendRejectionSampler.apply_logits_processors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._copy_draft_token_ids_to_cpu",
    ),
)
def swap_both_masks(original: Callable[..., None], batch: Any, first: int, second: int) -> None:
    """Swap the rows ``first`` and ``second`` of everything, each mask with the other."""
    masks = batch.allowed_token_ids_mask_cpu_tensor
    of_first = None if masks is None else masks[first].clone()
    original(batch, first, second)
    if of_first is not None:
        masks[second] = of_first


@swap_both_masks.also(target="vllm_ascend.sample.rejection_sampler:expand_pytorch")
def gather_values(
    original: Callable[..., None],
    expanded: torch.Tensor,
    values: torch.Tensor,
    ends: torch.Tensor,
    replace_from: float,
    replace_to: float,
    **_: Any,
) -> None:
    """Give each row of a verify step the value of its request, by the index of the request.

    Args:
        original: vllm-ascend's, which is not called.
        expanded: what is written, a value for each row.
        values: one for each request.
        ends: rows of a request and of those before it; a request may have none.
        replace_from: a value that is left out; rows have ``replace_to`` instead.
        replace_to: see ``replace_from``.
    """
    if not len(values) or not len(expanded):
        return
    rows = torch.arange(len(expanded), device=ends.device)
    requests = (rows[:, None] >= ends[None, :]).sum(dim=1).clamp(max=len(values) - 1)
    expanded.copy_(torch.where(values == replace_from, replace_to, values)[requests])


@swap_both_masks.also(target="vllm_ascend.sample.rejection_sampler:sample_recovered_tokens")
def draw_for_drafts(
    original: Callable[..., torch.Tensor],
    longest: int,
    drafts: list[int],
    ends: torch.Tensor,
    tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    probs: torch.Tensor,
    sampling: Any,
    *rest: Any,
    **named: Any,
) -> torch.Tensor:
    """Draw from the generators of requests with drafts alone; ``drafts``: number of each one's."""
    generators = {row: drawn for row, drawn in sampling.generators.items() if drafts[row]}
    sampling = replace(sampling, generators=generators)
    return original(longest, drafts, ends, tokens, draft_probs, probs, sampling, *rest, **named)


def name_drafts(runner: Any) -> None:
    """Let sampling know the tokens that ``runner`` drafted last, if it copied them to the host.

    It does so where penalties or bad words ask for them.
    """
    if not runner.use_async_scheduling or runner._draft_token_req_ids is None:
        return
    drafted, _ = runner._get_draft_token_ids_cpu()
    runner.input_batch.update_async_spec_token_ids(drafted)


def penalise_each_row(runner: Any) -> None:
    """Let rows of a verify step have the prompt and penalties of their request, without Triton.

    vLLM's own sampler repeats these for each row; vllm-ascend's does so with Triton alone.
    """
    if not HAS_TRITON:
        runner.rejection_sampler.apply_penalties = RejectionSampler.apply_penalties


def hold_back_stop_tokens(runner: Any, verified: Any) -> None:
    """Keep stop tokens from the rows of an answer before its ``min_tokens``, and from no others.

    Args:
        runner: vLLM's, with its batch.
        verified: metadata of the drafts that are verified; None in a step without any.
    """
    batch = runner.input_batch
    answers, asked = batch.req_output_token_ids, answers_below_minimum(runner)
    if not asked:
        return
    # With these vLLM copies sampled tokens to the host, and puts them in the place of drafts.
    batch.sampling_metadata.output_token_ids = answers
    batch.update_async_output_token_ids()
    drafts = [0] * len(batch.req_ids) if verified is None else verified.num_draft_tokens
    for processor in batch.logitsprocs.non_argmax_invariant:
        if not isinstance(processor, MinTokensLogitsProcessor):
            continue
        entries = {row: processor.add_request(of, None, answers[row]) for row, of in asked.items()}
        processor.min_toks = {row: entry for row, entry in entries.items() if entry is not None}
        # The last row of a request stands behind all of its drafts.
        last = [
            (row, stop)
            for row, (least, tokens, stops, *_) in processor.min_toks.items()
            if len(tokens) + drafts[row] < least
            for stop in stops
        ]
        processor.logits_slice = tuple(
            processor._device_tensor([pair[part] for pair in last], torch.int32) for part in (0, 1)
        )


def answers_below_minimum(runner: Any) -> dict[int, Any]:
    """Rows of the batch -> sampling parameters, where ``min_tokens`` may not be reached."""
    batch, found = runner.input_batch, {}
    for row, request in enumerate(batch.req_ids):
        params = runner.requests[request].sampling_params
        # The drafts of the last step may be among the tokens, accepted or not.
        known = max(0, len(batch.req_output_token_ids[row]) - runner.num_spec_tokens)
        if params is not None and params.min_tokens > known:
            found[row] = params
    return found
