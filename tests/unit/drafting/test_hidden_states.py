# SPDX-License-Identifier: Apache-2.0
"""Which hidden state each row of a head's first pass has, against plain loops."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mkv_ascend.drafting.draft import DraftBuffers, TargetOutput
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.planner import combine_joined_states
from mkv_ascend.drafting.strategy import take_hidden_states, take_hidden_states_for_graph

GIVEN, REJECTED = (3, 5, 1), (1, 0, 0)
MOST, MASKED, BEFORE = 48, -1.0, -7.0


def combined(states: torch.Tensor) -> torch.Tensor:
    """What the draft makes of two numbers, as a head does of several layers."""
    return states[:, :1] * 10 + states[:, 1:]


def head(joins: bool = False) -> Any:
    integers = [torch.zeros(MOST, dtype=torch.int32) for _ in range(3)]
    buffers = DraftBuffers(
        *integers,
        hidden_states=torch.full((MOST, 1), BEFORE),
        masked_state=torch.tensor([MASKED]),
        joined_states=torch.full((MOST, 2), BEFORE) if joins else None,
    )
    return SimpleNamespace(buffers=buffers, combine=combined)


def laid_out(draft: Any, sampled: int) -> tuple[DraftPlan, torch.Tensor, int]:
    """A first pass that drafts so many tokens for each request, the target's states, its rows."""
    sizes = Sizes(0, 4, MOST, 64, sampled_per_request=sampled, shift=True, parallel_token_id=9)
    plan = DraftPlan(sizes, [torch.zeros(4, 16, dtype=torch.int32)], [4])
    starts = torch.tensor([0, *GIVEN]).cumsum(0).to(torch.int32)
    tokens, lengths = sum(GIVEN), torch.tensor(GIVEN, dtype=torch.int32)
    target = TargetOutput(
        token_ids=torch.arange(tokens, dtype=torch.int32),
        positions=torch.cat([torch.arange(count) for count in GIVEN]),
        next_token_ids=torch.arange(3) + 100,
        hidden_states=None,
        num_rejected=torch.tensor(REJECTED, dtype=torch.int32),
        query_start_loc=starts,
        query_start_loc_host=starts,
        host_lengths=lengths,
        length_bounds=lengths,
        longest_row=max(GIVEN),
    )
    states = torch.arange(2 * tokens, dtype=torch.float32).view(tokens, 2)
    return plan, states, plan.expand(target, draft.buffers)


@pytest.mark.parametrize("sampled", [1, 2, 4])
@pytest.mark.parametrize("graph", [False, True])
def test_a_row_has_the_state_of_the_token_before_its_own(sampled: int, graph: bool) -> None:
    """Rows that are drafted in parallel have the state that the draft keeps for them."""
    draft = head()
    plan, states, rows = laid_out(draft, sampled)
    take = take_hidden_states_for_graph if graph else take_hidden_states
    take(draft, plan, states, rows)
    found = draft.buffers.hidden_states[:, 0].tolist()
    row = token = 0
    for given, rejected in zip(GIVEN, REJECTED, strict=True):
        kept = combined(states[token : token + given - rejected])[:, 0].tolist()
        expected = [*kept, *[MASKED] * (sampled - 1)]
        assert found[row : row + len(expected)] == expected
        row += given + sampled - 1
        token += given
    assert row == rows
    assert set(found[rows:]) == {BEFORE}


def test_states_that_a_graph_combines_are_combined_in_each_replay() -> None:
    draft = head(joins=True)
    plan, states, rows = laid_out(draft, 1)
    take_hidden_states_for_graph(draft, plan, states, rows)
    assert set(draft.buffers.hidden_states.flatten().tolist()) == {BEFORE}
    assert draft.buffers.joined_states[: len(states)].equal(states)
    combine_joined_states(draft, rows)
    assert rows == len(states)
    assert draft.buffers.hidden_states[:rows].equal(combined(states))
    assert set(draft.buffers.hidden_states[rows:].flatten().tolist()) == {BEFORE}


@pytest.mark.parametrize("graph", [False, True])
def test_a_draft_without_states_takes_none(graph: bool) -> None:
    draft = head()
    draft.buffers = replace(draft.buffers, hidden_states=None, masked_state=None)
    plan, states, rows = laid_out(draft, 1)
    (take_hidden_states_for_graph if graph else take_hidden_states)(draft, plan, states, rows)
    combine_joined_states(draft, rows)
    assert draft.buffers.hidden_states is None
