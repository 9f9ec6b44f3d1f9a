# SPDX-License-Identifier: Apache-2.0
"""Softmax attention of one request in float32, and which keys a query row sees.

Every attention operator of this folder ends here. A request is a query of shape
(query length S, heads N, head size D), keys (kv length K, kv heads, D) and values
(K, kv heads, value head size).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

UNLIMITED_TOKENS = 2147483647  # the operators' default for pre_tokens and next_tokens


class SparseMode(IntEnum):
    """Which part of the score matrix is computed. Source: op-plugin docs, sparse_mode."""

    DEFAULT_MASK = 0
    ALL_MASK = 1
    LEFT_UP_CAUSAL = 2
    RIGHT_DOWN_CAUSAL = 3
    BAND = 4


@dataclass(frozen=True)
class MaskRule:
    """How an operator was told to mask.

    pre_tokens and next_tokens are inclusive: a row keeps pre_tokens keys before its own position,
    its own, and next_tokens after it, so a band with next_tokens=0 keeps pre_tokens + 1 keys
    (op-plugin's golden test of npu_fusion_attention masks from pre_tokens + 1 on).
    mask: for the modes 0 and 1, (requests or 1, query length or more, kv length or more), true or
    1 where a score is dropped. The causal and band modes take a fixed triangular mask on hardware,
    which carries no information.
    """

    mode: SparseMode = SparseMode.DEFAULT_MASK
    pre_tokens: int = UNLIMITED_TOKENS
    next_tokens: int = UNLIMITED_TOKENS
    mask: torch.Tensor | None = None

    def visible(self, query_length: int, kv_length: int, request: int = 0) -> torch.Tensor | None:
        """Boolean (query_length, kv_length), true where a score counts; None if all do."""
        if self.mode in (SparseMode.DEFAULT_MASK, SparseMode.ALL_MASK):
            return self._visible_by_mask(query_length, kv_length, request)
        if self.mode is SparseMode.LEFT_UP_CAUSAL:
            return _band(query_length, kv_length, 0, UNLIMITED_TOKENS, 0)
        offset = kv_length - query_length  # the last query row is at the last key
        if self.mode is SparseMode.RIGHT_DOWN_CAUSAL:
            return _band(query_length, kv_length, offset, UNLIMITED_TOKENS, 0)
        return _band(query_length, kv_length, offset, self.pre_tokens, self.next_tokens)

    def _visible_by_mask(
        self, query_length: int, kv_length: int, request: int
    ) -> torch.Tensor | None:
        if self.mask is None:
            return None  # documented: without a mask, pre_tokens and next_tokens are ignored
        mask = self.mask[request if self.mask.shape[0] > 1 else 0]
        visible = ~mask[:query_length, :kv_length].bool()
        if self.mode is SparseMode.ALL_MASK:
            return visible
        band = _band(query_length, kv_length, 0, self.pre_tokens, self.next_tokens)
        return visible if band is None else visible & band


def _band(
    query_length: int, kv_length: int, offset: int, pre_tokens: int, next_tokens: int
) -> torch.Tensor | None:
    """Row i, at key position i + offset, sees the keys from -pre_tokens to +next_tokens of it."""
    last_row = query_length - 1 + offset
    # The common case of one decoded token: nothing to mask, and no matrix to build.
    if offset + next_tokens >= kv_length - 1 and last_row - pre_tokens <= 0:
        return None
    rows = torch.arange(offset, offset + query_length).unsqueeze(1)
    columns = torch.arange(kv_length).unsqueeze(0)
    distance = columns - rows
    return (distance >= -pre_tokens) & (distance <= next_tokens)


@dataclass(frozen=True)
class AttentionResult:
    """Attention of one request, float32.

    output: (S, N, value head size), zero where a row sees no key. row_max, row_sum: (S, N), the
    reference that was subtracted from the scores and the sum of their exponentials; a sink counts
    in both.
    """

    output: torch.Tensor
    row_max: torch.Tensor
    row_sum: torch.Tensor

    @property
    def log_sum(self) -> torch.Tensor:
        """Log-sum-exp (S, N); minus infinity where a row sees no key."""
        return self.row_max + self.row_sum.log()


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    visible: torch.Tensor | None,
    sink: torch.Tensor | None = None,
) -> AttentionResult:
    """Attention of one request, computed in float32.

    visible: what MaskRule.visible gave. sink: one logit per head, (N,), which takes part in the
    softmax and has no value.
    Query head n belongs to kv head n // (N / kv heads).
    """
    query_length, num_heads, _ = query.shape
    kv_length, num_kv_heads, _ = key.shape
    value_size = value.shape[2]
    if kv_length == 0 or query_length == 0:
        return _attend_nothing(query_length, num_heads, value_size, sink)
    group = num_heads // num_kv_heads
    grouped = query.float().reshape(query_length, num_kv_heads, group, -1).permute(1, 2, 0, 3)
    grouped = grouped.reshape(num_kv_heads, group * query_length, -1)
    scores = torch.bmm(grouped, key.float().permute(1, 2, 0)) * scale
    scores = scores.view(num_kv_heads, group, query_length, kv_length)
    if visible is not None:
        scores = scores.masked_fill(~visible, float("-inf"))
    weights, row_max, row_sum = _softmax(scores, sink)
    weights = weights.view(num_kv_heads, group * query_length, kv_length)
    output = torch.bmm(weights, value.float().transpose(0, 1))

    def by_row(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.reshape(num_heads, query_length).transpose(0, 1)

    output = output.view(num_heads, query_length, value_size).transpose(0, 1)
    return AttentionResult(output, by_row(row_max), by_row(row_sum))


def _softmax(
    scores: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights like `scores`, (kv heads, group, S, K); row maximum and sum, (kv heads, group, S)."""
    highest = scores.amax(-1, keepdim=True)
    if sink is not None:
        sink = sink.float().view(*scores.shape[:2], 1, 1)
        highest = torch.maximum(highest, sink)
    # A row without keys would give -inf - -inf; any finite reference makes its weights zero.
    highest = highest.masked_fill(highest == float("-inf"), 0.0)
    weights = (scores - highest).exp_()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total = total + (sink - highest).exp()
    weights = weights.div_(total.masked_fill(total == 0, 1.0))
    return weights, highest.squeeze(-1), total.squeeze(-1)


def _attend_nothing(
    query_length: int, num_heads: int, value_size: int, sink: torch.Tensor | None
) -> AttentionResult:
    shape = (query_length, num_heads)
    output = torch.zeros(*shape, value_size)
    if sink is None:
        return AttentionResult(output, torch.zeros(shape), torch.zeros(shape))
    return AttentionResult(output, sink.float().expand(shape), torch.ones(shape))
