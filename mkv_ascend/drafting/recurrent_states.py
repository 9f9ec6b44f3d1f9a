# SPDX-License-Identifier: Apache-2.0
"""Recurrent states of a draft: which one is true once it is known which tokens were accepted.

A request has 1 + K blocks of states in each KV group of recurrent layers. Its true state is the one
after the last accepted token. Between two proposals that state is in block 0 and nowhere else. A
proposal

1. runs the draft over the target's own row, including drafts that were rejected. The state after
   token j of the row goes to block j. The inputs of the convolution stay in the window of block 0,
   one behind another, so that the window can end at any of them.
2. commits: the state after the last accepted token goes to block 0, and a copy to block 1.
3. decodes in place on the copy, which is then dropped.

So no count of accepted tokens is carried from one step to the next. Rows may change their order,
pause, and start anew. A row without drafts needs no special case.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

COMMITTED, SCRATCH = 0, 1
"""Columns of the block table: the block of the true state, and that of the copy for drafting."""


@dataclass(frozen=True)
class RecurrentCaches:
    """The caches of one layer.

    Attributes:
        windows: the last inputs of a convolution in the latest row, [blocks, rows, channels].
        states: states of which each block holds one, [blocks, ...].
    """

    windows: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]


def tokens_to_commit(
    query_start_loc: torch.Tensor,
    lengths: torch.Tensor,
    num_rejected: torch.Tensor | None,
    longest_row: int,
) -> torch.Tensor:
    """The token of its row after which a request's state is true; int64 [B], counted from 1.

    That is the last token that was not rejected. A row that begins a request, or has more than
    K + 1 tokens, ran as a prefill. A prefill leaves its last state in the place of the first
    token's state, so such a row counts as one token.

    Args:
        query_start_loc: int32 [B + 1], where rows begin.
        lengths: int32 [B], tokens of each request after its row, rejected ones included.
        num_rejected: [B], rejected tokens of the row; None without any.
        longest_row: K + 1.
    """
    rows = query_start_loc.diff()
    kept = rows if num_rejected is None else rows - num_rejected
    token_by_token = (rows <= longest_row) & (lengths > rows)
    return torch.where(token_by_token, kept, 1).clamp(min=1).to(torch.int64)


def commit(
    layers: Sequence[RecurrentCaches], table: torch.Tensor, accepted: torch.Tensor, speculative: int
) -> None:
    """Copy the state after the last accepted token to blocks 0 and 1 of each request.

    Args:
        layers: caches of the layers that share the block table.
        table: int32 [B, 1 + K] or wider.
        accepted: int64 [B], see ``tokens_to_commit``.
        speculative: K; a window has K rows more than its convolution needs.
    """
    last = accepted - 1
    source = table.gather(1, last[:, None])[:, 0].long()
    committed = table[:, COMMITTED].long()
    targets = torch.cat([committed, table[:, SCRATCH].long()])
    for layer in layers:
        for window in layer.windows:
            kept = window.shape[1] - speculative
            rows = last[:, None] + torch.arange(kept, device=last.device)
            found = window[committed[:, None], rows]
            window[targets, :kept] = torch.cat([found, found])
        for state in layer.states:
            found = state[source]
            state[targets] = torch.cat([found, found])
