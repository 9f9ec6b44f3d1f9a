# SPDX-License-Identifier: Apache-2.0
"""Causal convolution over the tokens of each request, with a window kept between calls."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as functional

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    INTEGERS,
    require,
    require_contiguous,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
)

PREFILL, UPDATE = 0, 1
"""Values of run_mode."""

SPECULATIVE_WIDTH = 4


@operator(
    "npu_causal_conv1d_custom",
    namespace="_C_ascend",
    source="vllm-ascend: definition and on-device test of the CausalConv1d kernel",
    limits="float16, bfloat16; what is written contiguous; num_accepted_tokens with width 4 only",
    missing="no query_start_loc (one token per request)",
    writes=("output", "conv_state"),
)
def npu_causal_conv1d_custom(
    output: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    conv_state: torch.Tensor,
    bias_opt: torch.Tensor | None,
    query_start_loc_opt: torch.Tensor | None,
    cache_indices_opt: torch.Tensor | None,
    initial_state_mode_opt: torch.Tensor | None,
    num_accepted_tokens_opt: torch.Tensor | None,
    activation_mode: int,
    pad_slot_id: int,
    run_mode: int,
) -> torch.Tensor:
    """output[t] = sum over w of weight[w] * x[t - width + 1 + w], per channel, then SiLU.

    What precedes a request's first token comes from its window in conv_state, where it has one:
    always when updating, by initial_state_mode when prefilling. With num_accepted_tokens (a
    verification of draft tokens) the window starts at the number accepted before, less one, and all
    tokens of this call are kept behind it, so that any number of them can be accepted next.

    Args:
        x, output: [tokens, channels]; weight: [width, channels]; bias: [channels].
        conv_state: [blocks, rows, channels], rows at least width - 1.
        query_start_loc: [requests + 1]; cache_indices: [requests] or [requests, columns], whose
            first column counts. Requests with the block pad_slot_id, or no tokens, are skipped.
        activation_mode: 1 for SiLU, 0 for none.
    """
    assert query_start_loc_opt is not None
    assert cache_indices_opt is not None
    blocks = cache_indices_opt.reshape(cache_indices_opt.shape[0], -1)[:, 0].tolist()
    starts = query_start_loc_opt.tolist()
    kept = weight.shape[0] - 1
    for request, (start, end) in enumerate(itertools.pairwise(starts)):
        if end <= start or blocks[request] == pad_slot_id:
            continue
        state = conv_state[blocks[request]]
        offset = _accepted(num_accepted_tokens_opt, request) - 1
        has_window = run_mode == UPDATE or _has_window(initial_state_mode_opt, request)
        before = state[offset : offset + kept].float()
        if not has_window:
            before = torch.zeros_like(before)
        tokens = torch.cat((before, x[start:end].float()))
        output[start:end] = _convolve(tokens, weight, bias_opt, activation_mode).to(output.dtype)
        # While draft tokens are verified all of them are kept, and as much before the first one as
        # the next call needs if it alone is accepted.
        rows = kept if num_accepted_tokens_opt is None else kept - 1 + end - start
        state[:rows] = tokens[-rows:].to(state.dtype)
    return output


def _accepted(accepted: torch.Tensor | None, request: int) -> int:
    return 1 if accepted is None else int(accepted[request])


def _has_window(mode: torch.Tensor | None, request: int) -> bool:
    return mode is not None and bool(mode[request])


def _convolve(
    tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: int
) -> torch.Tensor:
    channels = tokens.shape[1]
    filters = weight.float().t().unsqueeze(1)
    offset = None if bias is None else bias.float()
    result = functional.conv1d(tokens.t().unsqueeze(0), filters, offset, groups=channels)
    result = result[0].t()
    return functional.silu(result) if activation else result


@npu_causal_conv1d_custom.check
def _check_causal_conv1d(given: Arguments) -> None:
    require_dtype("x", given.x, HALF_FLOATS)
    require_same_dtype(
        x=given.x,
        weight=given.weight,
        conv_state=given.conv_state,
        bias=given.bias_opt,
        output=given.output,
    )
    require_rank("x", given.x, 2)
    channels = given.x.shape[1]
    require_shape("weight", given.weight, (None, channels))
    require_shape("conv_state", given.conv_state, (None, None, channels))
    require_shape("output", given.output, tuple(given.x.shape))
    # The operator's definition makes inputs contiguous; what is written would be lost in a copy.
    for name, tensor in (("conv_state", given.conv_state), ("output", given.output)):
        require_contiguous(name, tensor)
    require(
        given.activation_mode in (0, 1), f"activation_mode is {given.activation_mode}; it is 0 or 1"
    )
    require(given.run_mode in (PREFILL, UPDATE), f"run_mode is {given.run_mode}; it is 0 or 1")
    for name in ("query_start_loc", "cache_indices"):
        indices = getattr(given, f"{name}_opt")
        require(indices is not None, f"{name} is None; the emulated kernel needs it")
        require_dtype(name, indices, INTEGERS)
    requests = given.query_start_loc_opt.shape[0] - 1
    require(
        given.cache_indices_opt.shape[0] >= requests,
        f"cache_indices has {given.cache_indices_opt.shape[0]} rows for {requests} requests",
    )
    lengths = given.query_start_loc_opt.diff()
    require(bool((lengths >= 0).all()), "query_start_loc decreases")
    _check_window(
        given.weight, given.conv_state, given.num_accepted_tokens_opt, lengths, given.run_mode
    )
    blocks = given.cache_indices_opt.reshape(given.cache_indices_opt.shape[0], -1)[:requests, 0]
    used = blocks[(blocks != given.pad_slot_id) & (lengths > 0)]
    require(
        bool(((used >= 0) & (used < given.conv_state.shape[0])).all()),
        f"cache_indices names blocks outside 0 to {given.conv_state.shape[0] - 1}: {used.tolist()}",
    )


def _check_window(
    weight: torch.Tensor,
    conv_state: torch.Tensor,
    accepted: torch.Tensor | None,
    lengths: torch.Tensor,
    run_mode: int,
) -> None:
    rows, kept = conv_state.shape[1], weight.shape[0] - 1
    require(rows >= kept, f"conv_state has {rows} rows; width - 1 = {kept} are needed")
    if accepted is None:
        return
    require(run_mode == UPDATE, "num_accepted_tokens is for run_mode 1 (update)")
    # The kernel keeps a window of tokens to verify for this width only.
    require(kept + 1 == SPECULATIVE_WIDTH, f"num_accepted_tokens needs width 4, not {kept + 1}")
    require_dtype("num_accepted_tokens", accepted, INTEGERS)
    longest = int(lengths.max()) if lengths.numel() else 0
    require(
        kept - 1 + longest <= rows,
        f"conv_state has {rows} rows; {longest} tokens to verify need {kept - 1 + longest}",
    )
    used = accepted[: lengths.shape[0]][lengths > 0]
    require(
        bool(((used >= 1) & (used - 1 + kept <= rows)).all()),
        f"num_accepted_tokens {used.tolist()} reaches outside the {rows} rows of conv_state",
    )
