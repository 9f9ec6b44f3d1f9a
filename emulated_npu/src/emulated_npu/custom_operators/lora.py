# SPDX-License-Identifier: Apache-2.0
"""Products of tokens with the low-rank adapters (LoRA) that their requests use.

`bgmv`: one adapter index for each token. `sgmv`: one for each sequence of seq_len tokens. A token
whose index is negative is left as it is. weight: (adapters, out, in), or (adapters, 1, out, in).
"""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    INTEGERS,
    require,
    require_dtype,
    require_rank,
    require_shape,
)


def _products(x: torch.Tensor, weight: torch.Tensor, adapters: torch.Tensor) -> torch.Tensor:
    matrices = weight.flatten(0, -3)[adapters.long()].float()
    return torch.bmm(matrices, x.float().unsqueeze(-1)).squeeze(-1)


def _shrink(
    x: torch.Tensor, weight: torch.Tensor, adapters: torch.Tensor, y: torch.Tensor, scale: float
) -> None:
    used = adapters >= 0
    y[used] = (_products(x[used], weight, adapters[used]) * scale).to(y.dtype)


def _expand(
    x: torch.Tensor,
    weight: torch.Tensor,
    adapters: torch.Tensor,
    y: torch.Tensor,
    slice_offset: int,
    slice_size: int,
) -> torch.Tensor:
    used = adapters >= 0
    target = y[:, slice_offset : slice_offset + slice_size]
    total = target[used].float() + _products(x[used], weight, adapters[used])
    target[used] = total.to(y.dtype)
    return y


def _adapter_of_tokens(
    lora_indices: torch.Tensor, seq_len: torch.Tensor, num_tokens: int
) -> torch.Tensor:
    """One adapter for each token; tokens past the last sequence have none."""
    adapters = torch.full((num_tokens,), -1, dtype=torch.int64)
    repeated = lora_indices[: seq_len.numel()].long().repeat_interleave(seq_len.long())
    adapters[: repeated.numel()] = repeated[:num_tokens]
    return adapters


def _check_shrink(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor) -> None:
    require_dtype("x", x, HALF_FLOATS)
    require_rank("x", x, 2)
    require_rank("weight", weight, (3, 4))
    require_dtype("y", y, (torch.float32,))
    require_shape("y", y, (x.shape[0], None))
    require(
        x.shape[1] > y.shape[1],
        f"x has {x.shape[1]} columns, y {y.shape[1]}; shrinking needs more in x than in y",
    )


def _check_expand(
    x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, slice_offset: int, slice_size: int
) -> None:
    require_dtype("x", x, (torch.float32,))
    require_rank("x", x, 2)
    require_rank("weight", weight, (3, 4))
    require_dtype("weight", weight, HALF_FLOATS)
    require_dtype("y", y, FLOATS)
    require_shape("y", y, (x.shape[0], None))
    require(
        x.shape[1] <= slice_size and slice_offset >= 0 and slice_offset + slice_size <= y.shape[1],
        f"the slice is {slice_size} columns from {slice_offset}; it must lie in y's {y.shape[1]} "
        f"and have at least x's {x.shape[1]}",
    )
    require(
        weight.shape[-2] == slice_size,
        f"weight has {weight.shape[-2]} rows and the slice is {slice_size} columns; the kernel "
        "steps through weight in rows of the slice and would read those of other adapters",
    )


@operator(
    "bgmv_shrink",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_bgmv_shrink",
    limits="x float16 or bfloat16 (tokens, in), y float32 (tokens, out), in > out.",
    writes=("y",),
)
def bgmv_shrink(
    x: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, y: torch.Tensor, scale: float
) -> None:
    """y[i] = weight[indices[i]] @ x[i] * scale."""
    _shrink(x, weight, indices, y, scale)


@bgmv_shrink.check
def _check_bgmv_shrink(
    x: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, y: torch.Tensor
) -> None:
    _check_shrink(x, weight, y)
    require_dtype("indices", indices, INTEGERS)
    require_shape("indices", indices, (x.shape[0],))


@operator(
    "bgmv_expand",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_bgmv_expand",
    limits="x float32 (tokens, in), weight and y float16 or bfloat16.",
    writes=("y",),
)
def bgmv_expand(
    x: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    y: torch.Tensor,
    slice_offset: int,
    slice_size: int,
) -> torch.Tensor:
    """Add weight[indices[i]] @ x[i] to slice_size columns of y[i] from slice_offset on."""
    return _expand(x, weight, indices, y, slice_offset, slice_size)


@bgmv_expand.check
def _check_bgmv_expand(
    x: torch.Tensor,
    weight: torch.Tensor,
    indices: torch.Tensor,
    y: torch.Tensor,
    slice_offset: int,
    slice_size: int,
) -> None:
    _check_expand(x, weight, y, slice_offset, slice_size)
    require_dtype("indices", indices, INTEGERS)
    require_shape("indices", indices, (x.shape[0],))


@operator(
    "sgmv_shrink",
    namespace="_C_ascend",
    source="vllm-ascend: the SGMVShrink kernel",
    limits="As bgmv_shrink.",
    writes=("y",),
)
def sgmv_shrink(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_indices: torch.Tensor,
    seq_len: torch.Tensor,
    y: torch.Tensor,
    scale: float,
) -> None:
    """As bgmv_shrink, the adapter of sequence s for its seq_len[s] tokens."""
    _shrink(x, weight, _adapter_of_tokens(lora_indices, seq_len, x.shape[0]), y, scale)


@sgmv_shrink.check
def _check_sgmv_shrink(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_indices: torch.Tensor,
    seq_len: torch.Tensor,
    y: torch.Tensor,
) -> None:
    _check_shrink(x, weight, y)
    require_dtype("lora_indices", lora_indices, INTEGERS)
    require_dtype("seq_len", seq_len, INTEGERS)


@operator(
    "sgmv_expand",
    namespace="_C_ascend",
    source="vllm-ascend: the SGMVExpand kernel",
    limits="As bgmv_expand.",
    writes=("y",),
)
def sgmv_expand(
    x: torch.Tensor,
    weight: torch.Tensor,
    lora_indices: torch.Tensor,
    seq_len: torch.Tensor,
    y: torch.Tensor,
    slice_offset: int,
    slice_size: int,
) -> torch.Tensor:
    """As bgmv_expand, the adapter of sequence s for its seq_len[s] tokens."""
    adapters = _adapter_of_tokens(lora_indices, seq_len, x.shape[0])
    return _expand(x, weight, adapters, y, slice_offset, slice_size)


@sgmv_expand.check
def _check_sgmv_expand(given: Arguments) -> None:
    _check_expand(given.x, given.weight, given.y, given.slice_offset, given.slice_size)
    require_dtype("lora_indices", given.lora_indices, INTEGERS)
    require_dtype("seq_len", given.seq_len, INTEGERS)
