# SPDX-License-Identifier: Apache-2.0
"""The passes of one proposal: run the draft, sample, feed what was sampled back.

What runs here is the draft's own work. Metadata, positions and slots are planned beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from mkv_ascend.drafting.draft import Draft, Metadata, PassBatch


def nothing() -> None:
    """Where a strategy has nothing to do."""


@dataclass(frozen=True)
class Passes:
    """A proposal's passes, planned.

    Attributes:
        batch: of the first pass.
        first: metadata of the first pass; None: ``begin`` makes it.
        sample_rows: rows of the first pass that go on, or all that are sampled from.
        positions: of each later pass, int32 [rows] (M-RoPE: [axes, rows]).
        later_rows: rows of a later pass.
        later: gives the metadata of each later pass; asked once the first pass was launched.
        sampled: [B], tokens that the later passes begin with; None: those that the first pass
            drafts.
        begin: runs before the first pass, in its forward context.
        commit: runs after it.
        refresh: brings in, at the head of a graph, what a replay must have anew; given these
            passes, it gives those to run.
    """

    batch: PassBatch
    first: Metadata | None
    sample_rows: torch.Tensor
    positions: tuple[torch.Tensor, ...] = ()
    later_rows: int = 0
    later: Callable[[], Sequence[Metadata | None]] = field(default=list)
    sampled: torch.Tensor | None = None
    begin: Callable[[], None] = nothing
    commit: Callable[[], None] = nothing
    refresh: Callable[[Passes], Passes] = lambda passes: passes


def run_passes(draft: Draft, passes: Passes) -> torch.Tensor:
    """Draft K tokens for each of B requests, inside the host's forward context; int64 [B, K]."""
    batch = passes.batch
    passes.begin()
    states = draft.forward(batch.input_rows)
    passes.commit()
    if not passes.positions:
        return draft.sample(states.last, passes.sample_rows).view(batch.requests, -1)
    tokens = torch.empty(
        (len(passes.positions) + 1, batch.requests), dtype=torch.int64, device=states.last.device
    )
    if passes.sampled is None:
        draft.sample(states.last, passes.sample_rows, tokens[0])
        drafted = tokens
    else:
        tokens[0] = passes.sampled
        drafted = tokens[1:]
    _run_later_passes(draft, passes, tokens, states.hidden)
    return drafted.swapaxes(0, 1)


def _run_later_passes(
    draft: Draft, passes: Passes, tokens: torch.Tensor, hidden: torch.Tensor
) -> None:
    """Run the passes of one token per request; fill ``tokens`` [passes + 1, B] from row 1 on.

    Args:
        hidden: the first pass's hidden states, of which ``sample_rows`` go on.
    """
    requests, rows = passes.batch.requests, passes.later_rows
    metadata = passes.later()
    draft.begin_later_passes(rows, requests)
    going_on: torch.Tensor | slice = passes.sample_rows
    for index, positions in enumerate(passes.positions):
        draft.use(metadata[index])
        draft.feed_back(tokens[index], hidden, going_on)
        states = draft.forward(rows, positions)
        going_on, hidden = slice(requests), states.hidden
        draft.sample(states.last, going_on, tokens[index + 1])
