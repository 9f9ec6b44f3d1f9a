# SPDX-License-Identifier: Apache-2.0
"""npu_attention_update: merge the attention over parts of the keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    require,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
    require_shape,
)
from emulated_npu.unwritten import undefined


@operator(
    "npu_attention_update",
    source="op-plugin docs: torch_npu.npu_attention_update",
    limits="""1 to 16 parts; lse float32 (rows,); outputs (rows, head size), head size a multiple
    of 8 from 8 to 512. A log-sum-exp of plus or minus infinity stands for a part without keys
    (not documented).""",
)
def npu_attention_update(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs O_i with log-sum-exp l_i -> sum of O_i exp(l_i - l), and l = log sum exp(l_i).

    lse: parts of (rows,), float32. local_out: parts of (rows, head size). update_type: 0 gives the
    output only (the second result is then undefined), 1 gives l too.
    """
    parts = torch.stack([part.float() for part in lse])
    parts = parts.masked_fill(parts.isinf(), float("-inf"))
    merged = torch.logsumexp(parts, 0)
    # Rows without keys in any part: the weights must be zero, not exp(-inf + inf).
    reference = merged.masked_fill(merged.isinf(), 0.0)
    weights = (parts - reference).exp().unsqueeze(-1)
    output = (torch.stack([part.float() for part in local_out]) * weights).sum(0)
    if update_type == 0:
        merged = undefined(merged)
    return output.to(local_out[0].dtype), merged


@npu_attention_update.check
def _check(
    lse: Sequence[torch.Tensor], local_out: Sequence[torch.Tensor], update_type: int
) -> None:
    require_range("the number of parts", len(lse), 1, 16)
    require(
        len(lse) == len(local_out),
        f"{len(lse)} lse and {len(local_out)} local_out; there must be as many",
    )
    require(update_type in (0, 1), f"update_type is {update_type}; it must be 0 or 1")
    require_rank("local_out[0]", local_out[0], 2)
    rows, head_size = local_out[0].shape
    require_range("the head size", head_size, 8, 512)
    require_multiple("the head size", head_size, 8)
    for index, (part, out) in enumerate(zip(lse, local_out, strict=True)):
        require_dtype(f"lse[{index}]", part, (torch.float32,))
        require_shape(f"lse[{index}]", part, (rows,))
        require_dtype(f"local_out[{index}]", out, FLOATS)
        require_shape(f"local_out[{index}]", out, (rows, head_size))
