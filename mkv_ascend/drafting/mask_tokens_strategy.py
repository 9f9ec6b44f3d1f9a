# SPDX-License-Identifier: Apache-2.0
"""Drafts of mask tokens (methods dflash, dspark): one pass drafts all, over any KV groups.

The draft turns the target's hidden states into keys and values of its own, called the context. It
writes them before its pass. The pass runs the draft window of each request: the token that the
target sampled, called the anchor, and mask tokens. Each mask drafts a token; where the anchor's row
drafts the first one, there are K - 1 masks, else K. The window attends to the whole context and to
itself. Rejected tokens are no part of the context, so lengths must be exact.

The plan holds the window as later passes, because its positions follow the last token's.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from mkv_ascend.drafting.draft import (
    ContextDraft,
    CosSinRows,
    DraftBuffers,
    LaterPasses,
    PassBatch,
    TargetOutput,
)
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.proposal import Passes


class MaskTokensStrategy:
    """``Strategy`` of a draft that drafts all tokens in one pass.

    The window uses the draft's buffers of token ids and positions. The buffer ``hidden_states``
    holds the context of a graph.

    Args:
        from_anchor: whether the anchor's row drafts the first token.
    """

    def __init__(
        self,
        draft: ContextDraft,
        plan: DraftPlan,
        needs: Needs,
        mask_token_id: int,
        *,
        from_anchor: bool = False,
    ) -> None:
        first = 0 if from_anchor else 1
        self.tokens, self.later_passes = plan.sizes.later_passes - first, 0
        self._draft, self._plan, self._needs = draft, plan, needs
        sizes, numbers = plan.sizes, plan.row_numbers
        size, requests = sizes.later_passes, sizes.max_requests
        self._size = size
        self._context = DraftBuffers(
            token_ids=numbers.new_zeros(sizes.max_tokens),
            positions=numbers.new_zeros(sizes.max_tokens),
            sample_rows=numbers.new_zeros(requests),
        )
        draft.buffers.token_ids.fill_(mask_token_id)
        self._slots = numbers.new_zeros(len(draft.groups.kv_groups) * requests * size)
        every = torch.arange(requests * size, dtype=torch.int32, device=numbers.device)
        # For any B, the first K * B of these are the rows to sample.
        self._sample_rows = every.view(requests, size)[:, first:].flatten()
        self._starts = plan.counts * size
        self._host_starts = plan.host_counts * size

    def lay_out(self, target: TargetOutput, padded_rows: int = 0) -> int:
        """See ``Strategy``; the rows are those of the context."""
        return self._plan.expand(target, self._context, padded_rows)

    def plan(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``; the host waits for lengths after the context is launched."""
        later = self._plan_window(target)
        batch = self._batch(target, later)
        assert target.hidden_states is not None, "the context is made of them"

        def begin() -> None:
            assert target.hidden_states is not None
            self._lay_out_window(later)
            self._write_context(self._draft.combine(target.hidden_states), rows)
            self._plan.wait_for_lengths()
            cos_sin = self._needs.cos_sin_rows(batch.positions, None)
            self._draft.use(self._needs.first_pass(with_lengths(batch, later), cos_sin))

        self._set_sampled(target)
        return Passes(batch, None, self._rows_to_sample(batch), begin=begin)

    def plan_captured(self, target: TargetOutput, rows: int) -> Passes:
        """See ``Strategy``; the graph holds the context, the window's layout and the pass."""
        later = self._plan_window(target)
        self._lay_out_window(later)
        self._plan.wait_for_lengths()
        batch = with_lengths(self._batch(target, later), later)
        cos_sin = self._needs.cos_sin_rows(batch.positions, None)
        return Passes(
            batch,
            self._needs.first_pass(batch, cos_sin),
            self._rows_to_sample(batch),
            begin=functools.partial(self._begin_captured, later, rows, cos_sin),
        )

    def may_replay(self, target: TargetOutput) -> bool:
        return True

    def take_for_graph(self, target: TargetOutput, rows: int) -> None:
        """See ``Strategy``; takes nothing for padding, because padding has no slots."""
        states, context = target.hidden_states, self._draft.buffers.hidden_states
        assert states is not None
        assert context is not None
        context[: states.shape[0]] = self._draft.combine(states)
        self._set_sampled(target)

    def lengths(
        self, target: TargetOutput, padding: int, later: LaterPasses | None
    ) -> list[list[int]]:
        assert later is not None, "the window is planned"
        lengths: list[int] = later.host_lengths.amax(dim=0).tolist()
        return [lengths]

    def _plan_window(self, target: TargetOutput) -> LaterPasses:
        later = self._plan.plan_later(target.requests, target.requests)
        self._plan.copy_lengths(later)
        return later

    def _begin_captured(self, later: LaterPasses, rows: int, cos_sin: CosSinRows | None) -> None:
        context = self._draft.buffers.hidden_states
        assert context is not None
        self._lay_out_window(later)
        if cos_sin is not None:
            cos_sin.regather()
        self._write_context(context[:rows], rows)

    def _set_sampled(self, target: TargetOutput) -> None:
        """Begin each window with the token that the target sampled."""
        requests, size = target.requests, self._size
        window = self._draft.buffers.token_ids[: requests * size].view(requests, size)
        window[:, 0] = target.next_token_ids

    def _lay_out_window(self, later: LaterPasses) -> None:
        """Write positions and slots of the pass, request by request."""
        size, groups, requests = later.all_slots.shape
        rows = requests * size
        self._draft.buffers.positions[:rows].view(requests, size).copy_(later.all_positions.T)
        slots = self._slots[: groups * rows].view(groups, requests, size)
        slots.copy_(later.all_slots.permute(1, 2, 0))

    def _write_context(self, states: torch.Tensor, rows: int) -> None:
        slots = self._plan.first_slots[:, :rows]
        self._draft.write_context(states, self._context.positions[:rows], slots)

    def _rows_to_sample(self, batch: PassBatch) -> torch.Tensor:
        return self._sample_rows[: batch.requests * self.tokens]

    def _batch(self, target: TargetOutput, later: LaterPasses) -> PassBatch:
        """The batch of the pass over the window; its lengths come later."""
        requests, size = target.requests, self._size
        rows, groups = requests * size, later.all_slots.shape[1]
        input_rows, rows_across_ranks = self._draft.share_rows(rows)
        return PassBatch(
            index=0,
            requests=requests,
            rows=rows,
            input_rows=input_rows,
            rows_across_ranks=rows_across_ranks,
            query_start_loc=self._starts[: requests + 1],
            query_start_loc_host=self._host_starts[: requests + 1],
            longest_row=size,
            lengths=later.lengths[0],
            host_lengths=target.host_lengths,
            length_bounds=target.length_bounds,
            positions=self._draft.buffers.positions[:rows],
            slots=tuple(self._slots[: groups * rows].view(groups, rows)),
            tables=later.tables,
            common=target.common,
            causal=False,
        )


def with_lengths(batch: PassBatch, later: LaterPasses) -> PassBatch:
    """``batch`` with the planned lengths, all of them on the host.

    Past the end of a sequence the plan has length 1, so the window then has fewer keys.
    """
    lengths = later.host_lengths.amax(dim=0)
    return replace(batch, lengths=lengths, host_lengths=lengths, length_bounds=lengths)
