# SPDX-License-Identifier: Apache-2.0
"""Positions of later passes on several axes, and the hidden state of each row of a first pass."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mkv_ascend.drafting.draft import DraftBuffers, TargetOutput
from mkv_ascend.drafting.needs import batch_of_later_pass
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.proposal import Passes
from mkv_ascend.drafting.strategy import (
    Planner,
    Refresh,
    combine_joined_states,
    take_hidden_states,
    take_hidden_states_for_graph,
)


def test_rope_positions_of_several_axes_move_on_together() -> None:
    """M-RoPE: axes need not be equal, nor the position in the sequence; past its end they are 0."""
    requests, rows = 2, 3
    sizes = Sizes(later_passes=2, max_requests=rows, max_tokens=16, max_model_len=12)
    plan = DraftPlan(sizes, [torch.zeros(rows, 4, dtype=torch.int32)], [4])
    plan.next_positions[:requests] = torch.tensor([4, 10], dtype=torch.int32)
    none = torch.zeros(1)
    axes = torch.tensor([[7, 2, 7, 8], [7, 3, 7, 8], [7, 5, 7, 8]])
    draft: Any = SimpleNamespace(
        buffers=DraftBuffers(none, none, torch.tensor([1, 3]), rope_positions=axes)
    )
    needs: Any = None
    later = plan.plan_later(rows, requests)
    moved = Planner(draft, plan, needs).positions(later, requests)
    assert [each.tolist() for each in moved] == [
        [[3, 9, 0], [4, 9, 0], [6, 9, 0]],
        # The second request would stand at position 12, which no sequence has.
        [[4, 0, 0], [5, 0, 0], [7, 0, 0]],
    ]


def test_a_replay_counts_on_from_the_positions_of_its_own_step() -> None:
    """Rows of padding hold places of an earlier batch, and get position 0 on every axis."""
    rows = 3
    sizes = Sizes(later_passes=1, max_requests=rows, max_tokens=16, max_model_len=512)
    plan = DraftPlan(sizes, [torch.zeros(rows, 4, dtype=torch.int32)], [4])
    none, sampled = torch.zeros(1), torch.tensor([1, 3, 99])
    axes = torch.zeros(3, 4, dtype=torch.int64)
    draft: Any = SimpleNamespace(buffers=DraftBuffers(none, none, sampled, rope_positions=axes))
    needs: Any = SimpleNamespace(distinct=())
    batch: Any = SimpleNamespace(requests=rows, rows=4)
    captured = Passes(batch, None, sampled, (torch.zeros(3, rows),), later_rows=rows)
    for live, first in ((3, 20), (2, 300)):
        plan.next_positions[:live] = first
        axes[:] = torch.arange(first, first + 12).view(3, 4)
        plan.plan_later(rows, live)
        refreshed = Refresh(Planner(draft, plan, needs), None)(captured)
        wanted = axes[:, [1, 3, 3]] + 1
        wanted[:, live:] = 0
        assert [each.tolist() for each in refreshed.positions] == [wanted.tolist()]


def test_lengths_of_a_replay_are_those_of_live_requests_and_none_of_padding() -> None:
    """Without a shift the first pass has a row more for each request, which is one key more."""
    none: Any = None
    for shift in (True, False):
        sizes = Sizes(later_passes=2, max_requests=4, max_tokens=16, max_model_len=64, shift=shift)
        plan = DraftPlan(sizes, [torch.zeros(4, 8, dtype=torch.int32)], [8])
        plan.next_positions[:2] = torch.tensor([9, 20], dtype=torch.int32)
        later = plan.plan_later(4, 2)
        plan.copy_lengths(later)
        target: Any = SimpleNamespace(host_lengths=torch.tensor([10, 21]))
        more = int(not shift)
        assert Planner(none, plan, none).lengths(target, 2, later) == [
            [10 + more, 21 + more, 0, 0],
            [11, 22, 0, 0],
            [12, 23, 0, 0],
        ]


def test_bounds_of_lengths_grow_by_a_key_a_pass() -> None:
    """What builders are told where the host does not know lengths: no more than they can be."""
    plan = DraftPlan(
        Sizes(later_passes=2, max_requests=3, max_tokens=16, max_model_len=64),
        [torch.zeros(3, 8, dtype=torch.int32)],
        [8],
    )
    none: Any = None
    first: Any = SimpleNamespace(
        requests=2, rows_across_ranks=None, length_bounds=torch.tensor([9, 20]), common=None
    )
    later = plan.later_passes(3, 2)
    batch = Planner(none, plan, none).later_batch(first, later, 3)
    assert (batch.requests, batch.rows, batch.input_rows, batch.longest_row) == (2, 2, 3, 1)
    bounds = [batch_of_later_pass(batch, later, index, None).length_bounds for index in (0, 1)]
    assert [each.tolist() for each in bounds] == [[10, 21], [11, 22]]


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
