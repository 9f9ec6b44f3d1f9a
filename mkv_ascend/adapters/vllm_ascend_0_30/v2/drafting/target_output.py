# SPDX-License-Identifier: Apache-2.0
"""The output of the target's step, from what model runner V2 hands to a speculator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

from mkv_ascend.drafting.draft import TargetOutput

if TYPE_CHECKING:
    from vllm_ascend.worker.v2.input_batch import AscendInputBatch


@dataclass(frozen=True)
class Step:
    """What model runner V2 knows after the target's step of B requests and T tokens.

    Attributes:
        batch: the runner's own record of the step.
        hidden_states: [at least T, width].
        auxiliary_states: of each layer that a head listens to, [at least T, width]; None or empty
            without such a head.
        num_sampled, num_rejected: int32 [B].
        last_sampled: int64 [requests of the engine, 1], the token that each request sampled last.
        next_prompt_tokens: int32 [tokens ahead, requests of the engine], of chunked prompts.
        rope_positions: [axes, at least T], if the draft has several axes (M-RoPE).
        multimodal: the runner's embeddings of images and their places.
    """

    batch: AscendInputBatch
    hidden_states: torch.Tensor
    auxiliary_states: list[torch.Tensor] | None
    num_sampled: torch.Tensor
    num_rejected: torch.Tensor
    last_sampled: torch.Tensor
    next_prompt_tokens: torch.Tensor
    rope_positions: torch.Tensor | None = None
    multimodal: Any = None


def target_output(step: Step) -> TargetOutput:
    """Translate the runner's step for a proposal."""
    batch = step.batch
    requests, tokens = batch.num_reqs, batch.num_tokens
    lengths = torch.from_numpy(batch.seq_lens_np)[:requests]
    starts = torch.from_numpy(batch.query_start_loc_np[: requests + 1])
    longest = int(batch.num_scheduled_tokens[:requests].max())
    common = _common_metadata(batch, starts, lengths, longest)
    return TargetOutput(
        token_ids=batch.input_ids[:tokens],
        positions=batch.positions[:tokens],
        next_token_ids=_next_tokens(step),
        hidden_states=_hidden_states(step, tokens),
        num_rejected=step.num_rejected[:requests],
        query_start_loc=batch.query_start_loc[: requests + 1],
        query_start_loc_host=starts,
        host_lengths=lengths,
        length_bounds=batch.seq_lens_cpu_upper_bound[:requests],
        longest_row=longest,
        rope_positions=(None if step.rope_positions is None else step.rope_positions[:, :tokens]),
        multimodal=step.multimodal,
        common=common,
    )


def _next_tokens(step: Step) -> torch.Tensor:
    """The token behind each request's rows: sampled, or the prompt's own inside a prompt; [B]."""
    batch = step.batch
    sampled = step.last_sampled.view(-1).index_select(0, batch.idx_mapping)
    if not _ends_inside_a_prompt(batch):
        return sampled
    prompt = step.next_prompt_tokens[0].index_select(0, batch.idx_mapping)
    return torch.where(step.num_sampled > 0, sampled, prompt)


def _ends_inside_a_prompt(batch: AscendInputBatch) -> bool:
    """Whether any request has more of its prompt to compute; known on the host."""
    computed = batch.num_computed_tokens_np[: batch.num_reqs] + batch.num_scheduled_tokens
    return bool((computed < batch.prefill_len_np[: batch.num_reqs]).any())


def _hidden_states(step: Step, tokens: int) -> torch.Tensor:
    if step.auxiliary_states:
        return torch.cat([states[:tokens] for states in step.auxiliary_states], dim=-1)
    return step.hidden_states[:tokens]


def _common_metadata(
    batch: AscendInputBatch, starts: torch.Tensor, lengths: torch.Tensor, longest: int
) -> AscendCommonAttentionMetadata:
    """What metadata builders shared in the target's pass, but for block table and slots.

    Model runner V2 makes it anew for each KV group and keeps none. A pass of the draft puts its own
    rows in.
    """
    requests = batch.num_reqs
    return AscendCommonAttentionMetadata(
        query_start_loc=batch.query_start_loc[: requests + 1],
        query_start_loc_cpu=starts,
        seq_lens=batch.seq_lens[:requests],
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound[:requests],
        num_reqs=requests,
        num_actual_tokens=batch.num_tokens,
        num_input_tokens=batch.num_tokens,
        max_query_len=longest,
        max_seq_len=int(lengths.max()),
        block_table_tensor=None,
        slot_mapping=None,
        positions=batch.positions[: batch.num_tokens],
        attn_state=batch.attn_state,
        is_prefilling=torch.from_numpy(batch.is_prefilling_np[:requests]),
    )
