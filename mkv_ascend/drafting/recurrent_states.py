# SPDX-License-Identifier: Apache-2.0
"""Recurrent states of a draft: which of them is true once it is known what was accepted.

A request has 1 + K blocks of states in each KV group of such layers. Between two proposals its true
state, the one after the last accepted token, is in block 0, and there alone. A proposal

1. runs the draft over the target's own row, the drafts that are about to be rejected included. The
   state after token j of the row goes to block j; the inputs of the convolution stay in the window
   of block 0, one behind another, so that any number of them can be taken.
2. commits: the state after the last accepted token goes to block 0, and a copy to block 1.
3. decodes on the copy, in place. It is thrown away.

So no count of accepted tokens is carried from one step to the next: rows may change their order,
pause, and start anew. A row without drafts is a row like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

COMMITTED, SCRATCH = 0, 1
"""Columns of the block table: where the true state is, and the one that is drafted with."""


@dataclass(frozen=True)
class RecurrentCaches:
    """What one layer keeps of each block.

    Attributes:
        windows: inputs of a convolution, [blocks, rows, channels]: the last ones of the row that
            came last.
        states: what one block has one of, [blocks, ...].
    """

    windows: tuple[torch.Tensor, ...]
    states: tuple[torch.Tensor, ...]


def tokens_to_commit(
    query_start_loc: torch.Tensor,
    lengths: torch.Tensor,
    num_rejected: torch.Tensor | None,
    longest_row: int,
) -> torch.Tensor:
    """At which token of its row a request's true state is; int64 [B], 1 for the first token.

    That is the last token that was not rejected. A row that began a request, or that is longer than
    K + 1 tokens, was run as a prefill, which leaves its last state where the first token's would
    be: it counts as one token.

    Args:
        query_start_loc: int32 [B + 1] of the rows.
        lengths: int32 [B], tokens of each request after its row, rejected ones included.
        num_rejected: [B], tokens of the row that were rejected; None: none.
        longest_row: K + 1.
    """
    rows = query_start_loc.diff()
    kept = rows if num_rejected is None else rows - num_rejected
    token_by_token = (rows <= longest_row) & (lengths > rows)
    return torch.where(token_by_token, kept, 1).clamp(min=1).to(torch.int64)


def commit(
    layers: Sequence[RecurrentCaches], table: torch.Tensor, accepted: torch.Tensor, speculative: int
) -> None:
    """Put the state after the last accepted token into block 0 of each request, and block 1.

    Args:
        layers: that share the block table.
        table: int32 [B, 1 + K] or wider.
        accepted: int64 [B], see ``tokens_to_commit``.
        speculative: K, rows by which a window is longer than a convolution needs.
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
