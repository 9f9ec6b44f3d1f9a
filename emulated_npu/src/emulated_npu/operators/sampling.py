# SPDX-License-Identifier: Apache-2.0
"""Filters of sampling."""

from __future__ import annotations

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)


@operator(
    "npu_top_k_top_p",
    source="op-plugin docs: torch_npu.npu_top_k_top_p, and its test (p or k may be None)",
    limits="logits (batch, vocabulary), p of logits' dtype in 0 to 1, k int32 in 1 to vocabulary. "
    "The documentation ends k at 1024; vllm-ascend passes the vocabulary's size for a row "
    "without top-k: accepted.",
)
def npu_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Set to -inf what is not among the k largest, then the tail of mass at most 1 - p.

    All logits that equal the k-th largest stay. At least one logit of each row stays. Returns a
    tensor of logits' shape and dtype.
    """
    values, order = logits.sort(dim=-1, descending=False, stable=True)
    if k is not None:
        threshold = values.gather(1, (values.shape[1] - k.long()).unsqueeze(1))
        values = values.masked_fill(values < threshold, float("-inf"))
    if p is not None:
        mass = values.float().softmax(-1).cumsum(-1)
        tail = mass <= (1 - p.float()).unsqueeze(1)
        tail[:, -1] = False
        values = values.masked_fill(tail, float("-inf"))
    return torch.empty_like(values).scatter_(1, order, values)


@npu_top_k_top_p.check
def _check_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None, k: torch.Tensor | None
) -> None:
    require_rank("logits", logits, 2)
    require_dtype("logits", logits, FLOATS)
    batch, vocabulary = logits.shape
    if p is not None:
        require_same_dtype(logits=logits, p=p)
        require_shape("p", p, (batch,))
        if batch:
            require_range("the least of p", float(p.min()), 0, 1)
            require_range("the largest of p", float(p.max()), 0, 1)
    if k is not None:
        require_dtype("k", k, (torch.int32,))
        require_shape("k", k, (batch,))
        if batch:
            require_range("the least of k", int(k.min()), 1, vocabulary)
            require_range("the largest of k", int(k.max()), 1, vocabulary)
