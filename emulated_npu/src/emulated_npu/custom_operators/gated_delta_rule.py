# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule, token by token: the recurrent form that decoding uses.

Per head, with state S [value, key], decay a = exp(g), and the rule of Yang et al., "Gated Delta
Networks" (2024):  S = a S;  S = S + beta (v - S k) k^T;  o = S q.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

MAXIMUM_HEADS, MAXIMUM_HEAD_SIZE = 256, 512


@operator(
    "npu_fused_gdn_gating",
    namespace="_C_ascend",
    source="vllm-ascend: definition and on-device test of the FusedGdnGating kernel",
    limits="a, b float16 or bfloat16, views of any strides (the operator's definition makes them "
    "contiguous for its kernel); A_log, dt_bias float32 or as a; g is float32",
)
def npu_fused_gdn_gating(
    A_log: torch.Tensor,  # noqa: N803 (the operator's own parameter name)
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log of the decay, g = -exp(A_log) softplus(a + dt_bias), and the step size sigmoid(b).

    Args:
        A_log, dt_bias: [heads]; a, b: [tokens, heads]; beta, threshold: of softplus.

    Returns:
        g float32 [1, tokens, heads] and sigmoid(b) [1, tokens, heads] in b's dtype.
    """
    shifted = a.float() + dt_bias.float()
    g = -A_log.float().exp() * functional.softplus(shifted, beta, threshold)
    return g.unsqueeze(0), b.float().sigmoid().to(b.dtype).unsqueeze(0)


@npu_fused_gdn_gating.check
def _check_fused_gdn_gating(
    A_log: torch.Tensor,  # noqa: N803
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
) -> None:
    require_dtype("a", a, HALF_FLOATS)
    require_same_dtype(a=a, b=b)
    require_dtype("A_log", A_log, FLOATS)
    require_same_dtype(A_log=A_log, dt_bias=dt_bias)
    require_rank("a", a, 2)
    require_shape("b", b, tuple(a.shape))
    require_shape("A_log", A_log, (a.shape[1],))
    require_shape("dt_bias", dt_bias, (a.shape[1],))


@operator(
    "npu_recurrent_gated_delta_rule",
    namespace="_C_ascend",
    source="vllm-ascend: definition, tiling and on-device test of the RecurrentGatedDeltaRule "
    "kernel; actual_seq_lengths starts with the first token, then a length for each request",
    limits="query, key, value, beta bfloat16; state bfloat16 or float32, contiguous; "
    "g float32; at most 256 heads of at most 512",
    missing="gk (a decay for each channel)",
    writes=("state",),
)
def npu_recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor | None = None,
    scale: float | None = None,
    actual_seq_lengths: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> torch.Tensor:
    """Advance each request's state over its tokens; the state after each token is stored.

    A request starts from the block of its first token, or, while draft tokens are verified, of the
    token that was accepted last: the entry num_accepted_tokens - 1 of its indices.

    Args:
        query, key: [tokens, key heads, key size]; value: [tokens, value heads, value size].
        state: [blocks, value heads, value size, key size].
        beta: [tokens, value heads]; g: log of the decay, same shape.
        actual_seq_lengths: [1 + requests]; ssm_state_indices: a block for each token.

    Returns:
        [tokens, value heads, value size]; rows of no request are zero.
    """
    if gk is not None:
        raise NotImplementedError(
            "emulated NPU has no gk (decay per channel) in _C_ascend.npu_recurrent_gated_delta_rule"
        )
    assert actual_seq_lengths is not None
    assert ssm_state_indices is not None
    tokens = delta_rule_inputs(query, key, value, g, beta, scale)
    first, *lengths = actual_seq_lengths.tolist()
    blocks = ssm_state_indices.reshape(-1).tolist()
    result = torch.zeros(value.shape, dtype=torch.float32)
    for request, length in enumerate(lengths):
        if length == 0:
            continue
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[request])
        current = state[blocks[first + accepted - 1]].float()
        for token in range(first, first + length):
            current, result[token] = advance(current, *(part[token] for part in tokens))
            state[blocks[token]] = current.to(state.dtype)
        first += length
    return result.to(query.dtype)


def delta_rule_inputs(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor | None,
    beta: torch.Tensor | None,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """float32 query (scaled), key, value, decay and beta for every token and value head."""
    heads = value.shape[1]
    shared_by = heads // query.shape[1]
    scaled = query.float() * (key.shape[-1] ** -0.5 if scale is None else scale)
    ones = torch.ones(value.shape[:2])
    return (
        scaled.repeat_interleave(shared_by, 1),
        key.float().repeat_interleave(shared_by, 1),
        value.float(),
        ones if g is None else g.float().exp(),
        ones if beta is None else beta.float(),
    )


def advance(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One token of all heads: the new state [heads, value, key] and the output [heads, value]."""
    state = state * decay[:, None, None]
    error = (value - torch.einsum("hvk,hk->hv", state, key)) * beta[:, None]
    state = state + error[:, :, None] * key[:, None, :]
    return state, torch.einsum("hvk,hk->hv", state, query)


@npu_recurrent_gated_delta_rule.check
def _check_recurrent_gated_delta_rule(given: Arguments) -> None:
    check_recurrent_arguments(given)
    require_contiguous("state", given.state)


def check_recurrent_arguments(given: Arguments) -> None:
    """What the operators of this rule ask alike, wherever the states lie."""
    for name, tensor in (("query", given.query), ("key", given.key), ("value", given.value)):
        require_rank(name, tensor, 3)
        require_dtype(name, tensor, (torch.bfloat16,))
    require(given.beta is not None, "beta is None; the kernel needs it")
    require_same_dtype(query=given.query, key=given.key, value=given.value, beta=given.beta)
    require_dtype("state", given.state, (torch.bfloat16, torch.float32))
    tokens, key_heads, key_size = given.query.shape
    value_heads, value_size = given.value.shape[1:]
    require_shape("key", given.key, (tokens, key_heads, key_size))
    require_shape("beta", given.beta, (tokens, value_heads))
    require_shape("state", given.state, (None, value_heads, value_size, key_size))
    for name, size in (("key", key_heads), ("value", value_heads)):
        require_range(f"the number of {name} heads", size, 1, MAXIMUM_HEADS)
    for name, size in (("key", key_size), ("value", value_size)):
        require_range(f"the {name} size", size, 1, MAXIMUM_HEAD_SIZE)
    require(
        value_heads % key_heads == 0, f"{value_heads} value heads are no multiple of {key_heads}"
    )
    if given.g is not None:
        require_dtype("g", given.g, (torch.float32,))
        require_shape("g", given.g, (tokens, value_heads))
    _check_indices(
        given.actual_seq_lengths,
        given.ssm_state_indices,
        given.num_accepted_tokens,
        given.state.shape[0],
    )


def _check_indices(
    lengths: torch.Tensor | None,
    blocks: torch.Tensor | None,
    accepted: torch.Tensor | None,
    num_blocks: int,
) -> None:
    named = {"actual_seq_lengths": lengths, "ssm_state_indices": blocks}
    for name, tensor in named.items():
        require(tensor is not None, f"{name} is None; the kernel needs it")
        assert tensor is not None
        require_dtype(name, tensor, (torch.int32,))
    assert lengths is not None
    assert blocks is not None
    first, used = int(lengths[0]), lengths[1:]
    require(bool((used >= 0).all()), "actual_seq_lengths has a negative length")
    end = first + int(used.sum())
    require(
        end <= blocks.numel(),
        f"actual_seq_lengths reaches token {end}, ssm_state_indices has {blocks.numel()}",
    )
    inside = blocks.reshape(-1)[first:end]
    require(
        bool(((inside >= 0) & (inside < num_blocks)).all()),
        f"ssm_state_indices names blocks outside 0 to {num_blocks - 1}: {inside.tolist()[:8]}",
    )
    if accepted is not None:
        require_dtype("num_accepted_tokens", accepted, (torch.int32,))
        live = accepted[: used.shape[0]][used > 0]
        require(
            bool(((live >= 1) & (live <= used[used > 0])).all()),
            f"num_accepted_tokens {live.tolist()} is not from 1 to the lengths "
            f"{used[used > 0].tolist()}",
        )
