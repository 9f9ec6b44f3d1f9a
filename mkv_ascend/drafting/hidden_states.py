# SPDX-License-Identifier: Apache-2.0
"""Brings the target's hidden states into a head's first pass."""

from __future__ import annotations

import torch

from mkv_ascend.drafting.draft import Draft
from mkv_ascend.drafting.plan import DraftPlan


def take_hidden_states(draft: Draft, plan: DraftPlan, states: torch.Tensor, rows: int) -> None:
    """Write the target's hidden states [T, width] into the first pass of ``rows`` rows."""
    buffers = draft.buffers
    if buffers.hidden_states is None:
        return
    states = draft.combine(states)
    if plan.sizes.sampled_per_request == 1:
        buffers.hidden_states[: states.shape[0]] = states
        return
    assert buffers.masked_state is not None, "rows that are drafted in parallel have a state"
    out = buffers.hidden_states[:rows]
    out[plan.hidden_rows[: states.shape[0]]] = states
    torch.where(plan.masked_mask[:rows, None], buffers.masked_state, out, out=out)


def take_hidden_states_for_graph(
    draft: Draft, plan: DraftPlan, states: torch.Tensor, rows: int
) -> None:
    """Like ``take_hidden_states``, before a replay.

    States that the graph combines go to a buffer of their own.
    """
    joined = draft.buffers.joined_states
    if joined is None:
        take_hidden_states(draft, plan, states, rows)
    else:
        joined[: states.shape[0]] = states


def combine_joined_states(draft: Draft, rows: int) -> None:
    """Combine the joined states inside a graph; captured at its head."""
    buffers = draft.buffers
    if buffers.joined_states is not None and buffers.hidden_states is not None:
        buffers.hidden_states[:rows] = draft.combine(buffers.joined_states[:rows])
