# SPDX-License-Identifier: Apache-2.0
"""What families in plain torch share: heads apart, a part of each turned, and windows."""

from __future__ import annotations

import torch


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
