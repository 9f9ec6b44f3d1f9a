# SPDX-License-Identifier: Apache-2.0
"""What plain families share: heads, turned in part, windows, and chunks of a delta rule."""

from __future__ import annotations

import torch
from torch.nn.functional import pad


def by_head(rows: torch.Tensor, size: int) -> torch.Tensor:
    """[rows, heads, tokens, ``size``] of [rows, tokens, heads * ``size``]."""
    return rows.unflatten(-1, (-1, size)).transpose(1, 2)


def turned(heads: torch.Tensor, rotated: int, base: float) -> torch.Tensor:
    """``heads`` whose first ``rotated`` elements are turned by their position from 0 on.

    Rotary embedding (RoFormer, equation 34) in halves, of ``[..., tokens, size]``.
    """
    half = rotated // 2
    angles = torch.arange(heads.shape[-2])[:, None] * base ** (-torch.arange(half) / half)
    first, second, kept = heads.split([half, half, heads.shape[-1] - rotated], dim=-1)
    halves = [
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    ]
    return torch.cat([*halves, kept], dim=-1)


def within_window(scores: torch.Tensor, window: int | None) -> torch.Tensor:
    """``scores`` ``[..., queries, keys]``; those of keys behind the window are minus infinity."""
    if window is None:
        return scores
    behind = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-window)
    return scores.masked_fill(behind, -torch.inf)


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """``vectors`` of length 1 in the last dimension."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + 1e-6)


def in_chunks(part: torch.Tensor, size: int) -> torch.Tensor:
    """``[rows, tokens, heads, ...]`` as ``[rows, heads, chunks, size, ...]``, zeros at the end."""
    missing = -part.shape[1] % size
    filled = pad(part.transpose(1, 2), [0, 0] * (part.dim() - 3) + [0, missing])
    return filled.unflatten(2, (-1, size))


def scanned(
    written: torch.Tensor,
    forgotten: torch.Tensor,
    asked: torch.Tensor,
    within: torch.Tensor,
    kept: torch.Tensor,
    to_state: torch.Tensor,
) -> torch.Tensor:
    """Outputs ``[rows, tokens, heads, size]`` of a delta rule, chunk after chunk, from no state.

    All are of chunks (``in_chunks``). What a chunk writes without a state is ``written``, less
    ``forgotten`` of the state before it. ``asked`` reads that state, and ``within`` what the chunk
    writes; of the state ``kept`` is left behind the chunk, which adds to it by ``to_state``.
    """
    state = torch.zeros_like(to_state[:, :, 0].mT @ written[:, :, 0])
    outputs = []
    for chunk in range(written.shape[2]):
        new = written[:, :, chunk] - forgotten[:, :, chunk] @ state
        outputs.append(asked[:, :, chunk] @ state + within[:, :, chunk] @ new)
        state = state * kept[:, :, chunk] + to_state[:, :, chunk].mT @ new
    return torch.stack(outputs, dim=2).flatten(2, 3).transpose(1, 2)
