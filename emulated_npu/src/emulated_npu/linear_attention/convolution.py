# SPDX-License-Identifier: Apache-2.0
"""Causal convolution over the tokens of each request, as fla_npu has it.

``out[t] = bias + sum over w of weight[w] * x[t - width + 1 + w]``, per channel, then SiLU. What
precedes the first token is kept in a block of states [blocks, rows, channels].
"""

from __future__ import annotations

import torch

from emulated_npu.custom_operators.convolution import PREFILL, UPDATE, npu_causal_conv1d_custom
from emulated_npu.linear_attention import NAMESPACE
from emulated_npu.linear_attention.strides import require_dense_states
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    INTEGERS,
    require,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

SOURCE = "flash-linear-attention-npu: aclnnCausalConv1d.md; call sites in vllm-ascend 0.30"
LIMITS = (
    "float16, bfloat16; width 2 to 4; channels a multiple of 16; states may lie apart (CANN "
    "9.1.0), each one dense"
)
MINIMUM_WIDTH, MAXIMUM_WIDTH, CHANNEL_UNIT = 2, 4, 16
NO_BLOCK = -1
"""Default of pad_slot_id."""
NULL_BLOCK = 0
"""Default of null_block_id, as in vLLM's functions of the same names."""
SILU = ("silu", "swish")


@operator(
    "causal_conv1d_fn",
    namespace=NAMESPACE,
    source=SOURCE,
    limits=LIMITS,
    missing="x of three dimensions",
    writes=("conv_states",),
)
def causal_conv1d_fn(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    conv_states: torch.Tensor | None = None,
    query_start_loc: torch.Tensor | None = None,
    cache_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
    activation: str | bool | None = None,
    pad_slot_id: int = NO_BLOCK,
    null_block_id: int = NULL_BLOCK,
) -> torch.Tensor:
    """Prompts, or parts of them, one after another; each leaves its last inputs in its block.

    Args:
        x: [tokens, channels]; weight: [width, channels]; bias: [channels].
        conv_states: [blocks, rows, channels]; the first width - 1 rows are read and written.
        query_start_loc: [requests + 1]; cache_indices: block of each request, [requests].
        has_initial_state: whether the block holds the inputs before the first token, [requests].

    Returns:
        [tokens, channels]; zeros for requests in the block pad_slot_id or null_block_id.
    """
    assert conv_states is not None
    output = torch.zeros_like(x)
    return npu_causal_conv1d_custom.kernel(
        output, x, weight, conv_states, bias, query_start_loc,
        _used_blocks(cache_indices, null_block_id, pad_slot_id), has_initial_state, None,
        _activation_mode(activation), pad_slot_id, PREFILL,
    )  # fmt: skip


@operator(
    "causal_conv1d_update",
    namespace=NAMESPACE,
    source=SOURCE,
    limits=LIMITS,
    missing="x of three dimensions",
    writes=("conv_state", "out"),
)
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
    null_block_id: int = NULL_BLOCK,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """One token per request, or the tokens of a verification of drafts.

    A verification starts from the inputs behind those that were accepted before, less one, and
    keeps all inputs of this call behind them, so that any number can be accepted next.

    Args:
        x: [requests, channels], or [tokens, channels] with query_start_loc [requests + 1].
        conv_state: [blocks, rows, channels]; weight: [width, channels]; bias: [channels].
        conv_state_indices: block of each request, [requests].
        num_accepted_tokens: [requests], at least 1 each.
        out: where the result goes, as x.

    Returns:
        As x. Requests in the block null_block_id are skipped: zeros, or what ``out`` held.
    """
    assert conv_state_indices is not None
    if query_start_loc is None:
        query_start_loc = torch.arange(conv_state_indices.shape[0] + 1)
    return npu_causal_conv1d_custom.kernel(
        torch.zeros_like(x) if out is None else out, x, weight, conv_state, bias, query_start_loc,
        _used_blocks(conv_state_indices, null_block_id, NO_BLOCK), None, num_accepted_tokens,
        _activation_mode(activation), NO_BLOCK, UPDATE,
    )  # fmt: skip


def _used_blocks(blocks: torch.Tensor | None, null_block: int, padding: int) -> torch.Tensor | None:
    """The blocks, with padding for the null block: there both mean that a request is skipped."""
    return None if blocks is None else torch.where(blocks == null_block, padding, blocks)


def _activation_mode(activation: str | bool | None) -> int:
    return int(activation is True or activation in SILU)


@causal_conv1d_fn.check
def _check_fn(given: Arguments) -> None:
    require(given.conv_states is not None, "conv_states is None; the emulated kernel needs it")
    _check(given, given.conv_states, given.cache_indices, "cache_indices")
    require(given.query_start_loc is not None, "query_start_loc is None; x has two dimensions")
    starts = given.query_start_loc
    require_shape("cache_indices", given.cache_indices, (starts.shape[0] - 1,))
    _check_starts(starts, given.x.shape[0])
    _check_blocks(
        given.cache_indices, starts, given.conv_states, (given.pad_slot_id, given.null_block_id)
    )


@causal_conv1d_update.check
def _check_update(given: Arguments) -> None:
    _check(given, given.conv_state, given.conv_state_indices, "conv_state_indices")
    if given.out is not None:
        require_shape("out", given.out, tuple(given.x.shape))
        require_same_dtype(x=given.x, out=given.out)
    starts = given.query_start_loc
    if starts is None:
        starts = torch.arange(given.conv_state_indices.shape[0] + 1)
    require_shape("conv_state_indices", given.conv_state_indices, (starts.shape[0] - 1,))
    _check_starts(starts, given.x.shape[0])
    lengths = starts.diff()
    used = _check_blocks(
        given.conv_state_indices, starts, given.conv_state, (NO_BLOCK, given.null_block_id)
    )
    if given.num_accepted_tokens is not None:
        require_dtype("num_accepted_tokens", given.num_accepted_tokens, INTEGERS)
        require_shape("num_accepted_tokens", given.num_accepted_tokens, (lengths.shape[0],))
        _check_accepted(
            given.num_accepted_tokens[used], lengths[used], given.conv_state, given.weight
        )


def _check(given: Arguments, states: torch.Tensor, blocks: torch.Tensor | None, name: str) -> None:
    require_dtype("x", given.x, HALF_FLOATS)
    require_same_dtype(x=given.x, weight=given.weight, states=states, bias=given.bias)
    require_rank("x", given.x, (2,))
    channels = given.x.shape[1]
    require(
        channels % CHANNEL_UNIT == 0, f"x has {channels} channels, no multiple of {CHANNEL_UNIT}"
    )
    require_shape("weight", given.weight, (None, channels))
    require_range("the width", given.weight.shape[0], MINIMUM_WIDTH, MAXIMUM_WIDTH)
    require_shape("the states", states, (None, None, channels))
    require_dense_states("the states", states)
    kept = given.weight.shape[0] - 1
    require(states.shape[1] >= kept, f"states have {states.shape[1]} rows; {kept} are needed")
    require(
        given.activation in (None, True, False, *SILU),
        f"activation is {given.activation!r}; it is silu, swish or none",
    )
    require(blocks is not None, f"{name} is None; the emulated kernel needs it")
    assert blocks is not None
    require_dtype(name, blocks, INTEGERS)


def _check_starts(starts: torch.Tensor, tokens: int) -> None:
    require_dtype("query_start_loc", starts, INTEGERS)
    rises = bool((starts.diff() >= 0).all()) and int(starts[0]) == 0 and int(starts[-1]) <= tokens
    require(rises, f"query_start_loc {starts.tolist()} does not rise from 0 to {tokens} or less")


def _check_blocks(
    blocks: torch.Tensor, starts: torch.Tensor, states: torch.Tensor, skipped: tuple[int, int]
) -> torch.Tensor:
    """Which requests are computed."""
    used = (starts.diff() > 0) & (blocks != skipped[0]) & (blocks != skipped[1])
    named = blocks[used]
    require(
        bool(((named >= 0) & (named < states.shape[0])).all()),
        f"blocks {named.tolist()} are not from 0 to {states.shape[0] - 1}",
    )
    return used


def _check_accepted(
    accepted: torch.Tensor, lengths: torch.Tensor, states: torch.Tensor, weight: torch.Tensor
) -> None:
    rows, kept = states.shape[1], weight.shape[0] - 1
    longest = int(lengths.max()) if lengths.numel() else 0
    require(
        kept - 1 + longest <= rows,
        f"states have {rows} rows; {longest} tokens to verify need {kept - 1 + longest}",
    )
    require(
        bool(((accepted >= 1) & (accepted - 1 + kept <= rows)).all()),
        f"num_accepted_tokens {accepted.tolist()} reaches outside the {rows} rows of the states",
    )
