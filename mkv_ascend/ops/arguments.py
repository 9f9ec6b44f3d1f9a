# SPDX-License-Identifier: Apache-2.0
"""The arguments of the ops that have many: what the schema is made of, and the check takes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from mkv_ascend.ops.schema import Written


class ExpandInputs(NamedTuple):
    """Arguments of ``expand_inputs``, in its order: R requests, T and T' rows of target and draft.

    Outputs may be views of larger buffers whose last dimension is dense.

    Attributes:
        token_ids: int32 or int64 [T], what the target was given.
        positions: int32 or int64 [T], of each token in its sequence; a request's tokens follow each
            other, so only its first is looked at. Below 2**31.
        next_token_ids: int32 or int64 [R].
        query_start_loc: int32 [R + 1], where each request begins in the input.
        num_requests: int32 [1], on the device; requests from there on are padding. A live request
            keeps one token or more.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        sampled_per_request: rows whose logits are sampled, 1 or more.
        shift: whether the draft sees each token one place earlier.
        max_model_len: tokens that the draft can hold, 1 to 2**31 - 1.
        out_token_ids: out, int32 [T'].
        out_positions: out, int32 or int64 [T'].
        rejected_mask: out, int8 or bool [T'], 1 for rows of padding.
        masked_mask: out, int8 or bool [T'], 1 for rows to be drafted in parallel.
        sample_indices: out, int32 [R * sampled_per_request], rows to sample from, request by
            request; 0 for padding.
        out_query_start_loc: out, int32 [R + 1], where each request begins in the output; past the
            last live one, the end of its part.
        lengths: out, int32 [R], keys that the last row of the request's part may see, rejected
            rows counted; 0 for padding. May exceed ``max_model_len``.
        next_positions: out, int32 or int64 [R], position of each request's next token, as
            ``draft_plan`` takes it: not cut at ``max_model_len``; 0 for padding.
        slots: out, int32 [G, T']. A slot must fit int32.
        num_rejected: int32 or int64 [R], tokens rejected at the end of each request; None: none.
        rope_positions: int32 or int64 [axes, T], positions for rotary embedding where they are not
            those in the sequence (M-RoPE).
        out_rope_positions: out, int32 or int64 [axes, T'], given with ``rope_positions``.
        hidden_rows: out, int32 [T], the output row that takes each input row's hidden state; -1
            past the last live request. Identity for ``shift`` without parallel drafting.
        padding_token_id: token of padding rows.
        parallel_token_id: token of rows to be drafted in parallel.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    next_token_ids: torch.Tensor
    query_start_loc: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    sampled_per_request: int
    shift: bool
    max_model_len: int
    out_token_ids: Written
    out_positions: Written
    rejected_mask: Written
    masked_mask: Written
    sample_indices: Written
    out_query_start_loc: Written
    lengths: Written
    next_positions: Written
    slots: Written
    num_rejected: torch.Tensor | None = None
    rope_positions: torch.Tensor | None = None
    out_rope_positions: Written | None = None
    hidden_rows: Written | None = None
    padding_token_id: int = 0
    parallel_token_id: int = 0


class DraftPlanArguments(NamedTuple):
    """Arguments of ``draft_plan``, in its order: for R rows, G KV groups and K - 1 later passes.

    Outputs may be views of larger buffers whose last dimension is dense.

    Attributes:
        positions: int32 or int64 [R], position of each request's last token in the first pass.
        num_requests: int32 [1], on the device: a captured graph freezes what is passed by value.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        max_model_len: tokens that the draft can hold, 1 to 2**31 - 1.
        step_positions: out, the dtype of ``positions`` [K - 1, R].
        lengths: out, int32 [K - 1, R].
        slots: out, int32 [K - 1, G, R]. A slot must fit int32.
    """

    positions: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    max_model_len: int
    step_positions: Written
    lengths: Written
    slots: Written


class TargetSlotsArguments(NamedTuple):
    """Arguments of ``target_slots``, in its order: for T tokens of R requests in G KV groups.

    Attributes:
        positions: int32 or int64 [T], of each token in its sequence.
        query_start_loc: int32 [R + 1], where each request begins.
        num_requests: int32 [1], on the device; requests from there on are padding.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        slots: out, G int32 [size], a list; all of each is written. A slot must fit int32.
        slot_table: int64 [G, 2], ``slot_table(slots)``.
    """

    positions: torch.Tensor
    query_start_loc: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    slots: list[Written]
    slot_table: torch.Tensor
