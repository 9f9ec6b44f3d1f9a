# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of the wrappers of the causal convolution that Mamba2 and short-conv layers call.

``result[t] = bias + sum over w of weight[w] * x[t - width + 1 + w]``, per channel, then SiLU. What
precedes a call's first token is kept in a block of ``conv_state`` ``[blocks, channels, rows]``.
Source of the semantics: vLLM's and vllm-ascend's docstrings of both wrappers.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as functional

PAD_SLOT_ID = -1
"""Block of a request that is padding, for kernels of vllm-ascend."""

NULL_BLOCK_ID = 0
"""The same for kernels of vLLM."""

SILU = ("silu", "swish")


def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    conv_states: torch.Tensor,
    query_start_loc: torch.Tensor,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = "silu",
    pad_slot_id: int = PAD_SLOT_ID,
    null_block_id: int = NULL_BLOCK_ID,
    metadata: Any = None,
    validate_data: bool = False,
    **positions_of_blocks: Any,
) -> torch.Tensor:
    """Prompts, or parts of them, one after another; each leaves its last inputs in its block.

    Args:
        x: [channels, tokens]; weight: [channels, width]; bias: [channels].
        conv_states: [blocks, channels, rows]; the first width - 1 rows are read and written.
        query_start_loc: [requests + 1]; cache_indices: block of each request, [requests].
        has_initial_state: whether the block holds the inputs before the first token, [requests].

    Returns:
        [channels, tokens] in x's dtype; zeros for requests in the null block.

    Raises:
        NotImplementedError: states are to be kept at every block of a prompt.
    """
    _refuse_states_at_every_block(positions_of_blocks)
    kept = weight.shape[1] - 1
    result = torch.zeros_like(x)
    starts = query_start_loc.tolist()
    blocks = range(len(starts) - 1) if cache_indices is None else cache_indices.tolist()
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        if end <= start or blocks[request] in (pad_slot_id, null_block_id):
            continue
        state = conv_states[blocks[request]][:, :kept]
        begun = has_initial_state is not None and bool(has_initial_state[request])
        before = state if begun else torch.zeros_like(state)
        tokens = torch.cat((before, x[:, start:end].to(state.dtype)), dim=1)
        result[:, start:end] = _convolve(tokens, weight, bias, activation).to(x.dtype)
        state.copy_(tokens[:, -kept:])
    return result


def causal_conv1d_update(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = -1,
    null_block_id: int = NULL_BLOCK_ID,
    validate_data: bool = False,
    **positions_of_blocks: Any,
) -> torch.Tensor:
    """One token per request, or the tokens of a verification of drafts.

    A verification starts from the inputs behind those that were accepted before, less one, and
    keeps all inputs of this call behind the history, so that any number can be accepted next.

    Args:
        x: [requests, channels], or [tokens, channels] with query_start_loc [requests + 1].
        conv_state: [blocks, channels, rows]; rows at least width - 1, and in a verification
            width - 2 + max_query_len.
        conv_state_indices: block of each request, [requests] or [requests, columns], whose first
            column counts. Requests in the block null_block_id are skipped.
        num_accepted_tokens: [requests], with query_start_loc only.

    Returns:
        As x; rows of skipped requests are x's own.

    Raises:
        NotImplementedError: a form that no layer of vLLM 0.23.0 asks for.
        ValueError: rows are not enough.
    """
    _refuse_states_at_every_block(positions_of_blocks)
    _check_update(x, conv_state_indices, num_accepted_tokens, query_start_loc)
    assert conv_state_indices is not None
    first_column = (slice(None),) + (0,) * (conv_state_indices.dim() - 1)
    blocks = conv_state_indices[first_column].tolist()
    one_each = range(len(blocks) + 1)
    starts = one_each if query_start_loc is None else query_start_loc.tolist()
    result = x.clone()
    for request, block in enumerate(blocks):
        start, end = starts[request], starts[request + 1]
        if end <= start or block == null_block_id:
            continue
        offset = 0 if num_accepted_tokens is None else int(num_accepted_tokens[request]) - 1
        outcome = _advance(x[start:end], conv_state[block], weight, bias, activation, offset)
        result[start:end] = outcome.to(x.dtype)
    return result


def causal_conv1d_update_npu(
    x: torch.Tensor,
    conv_state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    activation: str | bool | None = None,
    conv_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    max_query_len: int = -1,
    pad_slot_id: int = PAD_SLOT_ID,
    validate_data: bool = False,
    **positions_of_blocks: Any,
) -> torch.Tensor:
    """vllm-ascend's wrapper of the same, in which another block is padding.

    Raises:
        ValueError: states do not lie one after another.
    """
    if not conv_state.transpose(1, 2).is_contiguous():
        raise ValueError(
            f"conv_state of strides {conv_state.stride()} is not contiguous as "
            "[blocks, rows, channels]: vllm-ascend's wrapper would write to a copy of it"
        )
    return causal_conv1d_update(
        x,
        conv_state,
        weight,
        bias,
        activation,
        conv_state_indices,
        num_accepted_tokens,
        query_start_loc,
        null_block_id=pad_slot_id,
        **positions_of_blocks,
    )


def _check_update(
    x: torch.Tensor,
    conv_state_indices: torch.Tensor | None,
    num_accepted_tokens: torch.Tensor | None,
    query_start_loc: torch.Tensor | None,
) -> None:
    if x.dim() != 2 or conv_state_indices is None:
        raise NotImplementedError(
            "causal_conv1d_update on the emulated NPU takes x [tokens, channels] and "
            f"conv_state_indices, not x of {x.dim()} dimensions"
            f"{' without indices' if conv_state_indices is None else ''}"
        )
    if (query_start_loc is None) != (num_accepted_tokens is None):
        raise NotImplementedError(
            "causal_conv1d_update on the emulated NPU takes query_start_loc and "
            "num_accepted_tokens together, or neither"
        )


def _advance(
    x: torch.Tensor,
    state: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | bool | None,
    offset: int,
) -> torch.Tensor:
    """[tokens, channels] of one request, whose history starts at row ``offset`` of its state."""
    kept = weight.shape[1] - 1
    needed = max(offset + kept, kept - 1 + x.shape[0])
    if offset < 0 or needed > state.shape[1]:
        raise ValueError(
            f"conv_state has {state.shape[1]} rows; {x.shape[0]} tokens after {offset + 1} "
            f"accepted ones with width {kept + 1} need {needed}, and at least 1 is accepted"
        )
    tokens = torch.cat((state[:, offset : offset + kept], x.t().to(state.dtype)), dim=1)
    state[:, : tokens.shape[1] - 1] = tokens[:, 1:]
    return _convolve(tokens, weight, bias, activation).t()


def _convolve(
    tokens: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str | bool | None,
) -> torch.Tensor:
    """float32 [channels, tokens less width - 1], of tokens [channels, tokens]."""
    offset = None if bias is None else bias.float()
    filters = weight.float().unsqueeze(1)
    result = functional.conv1d(tokens.float().unsqueeze(0), filters, offset, groups=len(weight))[0]
    return functional.silu(result) if activation is True or activation in SILU else result


def _refuse_states_at_every_block(positions: dict[str, Any]) -> None:
    given = [name for name, value in positions.items() if isinstance(value, torch.Tensor)]
    if given:
        raise NotImplementedError(
            f"the emulated NPU's causal_conv1d has no {', '.join(given)} "
            "(mamba_cache_mode 'all'); use 'align' or 'none'"
        )
