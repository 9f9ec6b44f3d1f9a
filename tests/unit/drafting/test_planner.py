# SPDX-License-Identifier: Apache-2.0
"""Positions of later passes on several axes."""

from types import SimpleNamespace
from typing import Any

import torch

from mkv_ascend.drafting.draft import DraftBuffers
from mkv_ascend.drafting.needs import batch_of_later_pass
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from mkv_ascend.drafting.planner import Planner, Refresh


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
