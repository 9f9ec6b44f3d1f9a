# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the kernels with which vllm-ascend 0.30.0 merges attention over ranks.

Under decode context parallelism each rank attends to the keys that it has. The ranks exchange
outputs with the logarithms of their sums of exponentials; one kernel packs both, another one merges
what came. Interpreted, they walk over tokens and heads one by one, twice in each layer and pass.
Here they serve float32, where both lie in one row of D + 1 numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Floats = np.ndarray[Any, np.dtype[np.float32]]


def pack(
    *,
    output_ptr: torch.Tensor,
    lse_ptr: torch.Tensor,
    send_ptr: torch.Tensor,
    local_scatter_size: int,
    head_dim: int,
    num_heads: int,
    total_rows: int,
    SCATTER_TOKENS: bool,  # noqa: N803 (names of the kernel)
    LSE_PACK_DIM: int,  # noqa: N803
    **strides: Any,
) -> Any:
    """Write outputs and their log sums side by side, in the order of the ranks that get them.

    Args:
        output_ptr, lse_ptr: [tokens, heads, ``head_dim``] and [tokens, heads].
        send_ptr: [ranks, ``local_scatter_size``, heads or tokens, ``head_dim`` + 1].
        SCATTER_TOKENS: whether ranks get tokens of all heads, not heads of all tokens.
    """
    if LSE_PACK_DIM != 1:
        return NotImplemented
    tokens = total_rows // num_heads
    across = ["rank", "scatter", "replicated", "d"]
    output = _view(output_ptr, (tokens, num_heads, head_dim), strides, "output", "thd")
    log_sums = _view(lse_ptr, (tokens, num_heads), strides, "lse", "th")
    scattered, other = (tokens, num_heads) if SCATTER_TOKENS else (num_heads, tokens)
    shape = (scattered // local_scatter_size, local_scatter_size, other, head_dim + 1)
    sent = _view(send_ptr, shape, strides, "send", across)
    parts = torch.cat([output, log_sums[..., None].to(output.dtype)], dim=-1)
    parts = parts if SCATTER_TOKENS else parts.transpose(0, 1)
    sent.copy_(parts.reshape(shape))
    return None


def combine(
    *,
    recv_ptr: torch.Tensor,
    output_ptr: torch.Tensor,
    local_output_ptr: torch.Tensor,
    local_lse_ptr: torch.Tensor,
    head_dim: int,
    num_heads: int,
    total_rows: int,
    DCP_SIZE: int,  # noqa: N803
    SCATTER_TOKENS: bool,  # noqa: N803
    LSE_PACK_DIM: int,  # noqa: N803
    HAS_LOCAL: bool = False,  # noqa: N803
    RETURN_LSE: bool = False,  # noqa: N803
    **strides: Any,
) -> Any:
    """Weigh the outputs of all ranks, and one that all of them have, by their log sums.

    An output whose log sum is not finite has no keys, and no weight.

    Args:
        recv_ptr: as ``send_ptr`` of ``pack``, of each rank.
        output_ptr: [tokens, heads, ``head_dim``].
        local_output_ptr, local_lse_ptr: as ``output_ptr`` and ``lse_ptr`` of ``pack``; with
            HAS_LOCAL.
    """
    if LSE_PACK_DIM != 1 or RETURN_LSE:
        return NotImplemented
    tokens, across = total_rows // num_heads, ["rank", "scatter", "replicated", "d"]
    axes = (tokens, num_heads) if SCATTER_TOKENS else (num_heads, tokens)
    received = _view(recv_ptr, (DCP_SIZE, *axes, head_dim + 1), strides, "recv", across)
    if not SCATTER_TOKENS:
        received = received.transpose(1, 2)
    parts = [(one[..., :-1].numpy(), one[..., -1].numpy()) for one in received]
    if HAS_LOCAL:
        shape = (tokens, num_heads, head_dim)
        own = _view(local_output_ptr, shape, strides, "local_output", "thd")
        own_sums = _view(local_lse_ptr, shape[:2], strides, "local_lse", "th")
        parts.append((own.numpy(), own_sums.numpy()))
    output = _view(output_ptr, (tokens, num_heads, head_dim), strides, "output", "thd")
    output.copy_(torch.from_numpy(_merged(parts)))
    return None


def _view(
    tensor: torch.Tensor, shape: tuple[int, ...], strides: dict[str, Any], name: str, axes: Any
) -> torch.Tensor:
    """``tensor`` by the strides that the kernel got for it."""
    return tensor.as_strided(shape, [int(strides[f"{name}_stride_{axis}"]) for axis in axes])


def _merged(parts: list[tuple[Floats, Floats]]) -> Floats:
    """The parts' weighted mean, added up in their order as the kernel does."""
    finite = [np.isfinite(log_sums) for _, log_sums in parts]
    least = np.float32(-np.inf)
    known = [np.where(has, sums, least) for has, (_, sums) in zip(finite, parts, strict=True)]
    largest = np.maximum.reduce(known)
    largest = np.where(largest == least, np.float32(0), largest)
    total = np.zeros_like(parts[0][0])
    weights = np.zeros_like(largest)
    for has, (output, log_sums) in zip(finite, parts, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            weight = np.where(has, np.exp(log_sums - largest), np.float32(0))
        total = total + np.where(has[..., None], output, np.float32(0)) * weight[..., None]
        weights = weights + weight
    return total / np.where(weights > 0, weights, np.float32(1))[..., None]
