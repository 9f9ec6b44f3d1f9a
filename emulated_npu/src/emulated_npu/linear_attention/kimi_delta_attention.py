# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention (KDA) as fla_npu has it: the delta rule with a decay for each channel.

Per head, with state S [value, key], decay a = exp(g) in [key] and step size beta (paper "Kimi
Linear", 2025):  S = S diag(a);  S = S + beta (v - S k) k^T;  o = S q.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from emulated_npu.linear_attention import NAMESPACE
from emulated_npu.linear_attention.gated_delta_rule import LONGEST_REQUEST
from emulated_npu.linear_attention.strides import require_dense_states
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    INTEGERS,
    require,
    require_dtype,
    require_same_dtype,
    require_shape,
)
from emulated_npu.triton_interpreter import replacements_kda

LOWER_BOUND = -5.0
"""Default of the smallest decay of a safe gate."""


def decay_of(
    g: torch.Tensor,
    rate: torch.Tensor | None,
    bias: torch.Tensor | None,
    in_kernel: bool,
    lower_bound: float | None,
) -> torch.Tensor:
    """Log of the decay, float32 [tokens, heads, key size].

    As given, or made of a projection: -exp(A_log) softplus(g + bias), or, with a lower bound (a
    safe gate), lower_bound sigmoid(exp(A_log) (g + bias)).

    Args:
        g: [tokens, heads, key size]; rate: A_log [heads]; bias: [heads * key size] or by head.
    """
    if not in_kernel:
        return g.float()
    assert rate is not None
    return replacements_kda.decay_of(g, rate, bias, g.shape[-1], lower_bound)


@operator(
    "recurrent_kda",
    namespace=NAMESPACE,
    source="flash-linear-attention-npu: API page of recurrent_kda",
    limits="q, k, v bfloat16; key size 128, value size 128 or 256; state bfloat16 or float32, its "
    "blocks may lie apart; at most 8 tokens of a sequence",
    missing="initial_state None",
    writes=("initial_state",),
)
def recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None = None,
    *,
    cu_seqlens: torch.Tensor,
    ssm_state_indices: torch.Tensor | None = None,
    A_log: torch.Tensor | None = None,  # noqa: N803 (the operator's own parameter name)
    dt_bias: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    layout: str = "BSND",
    scale: float | None = None,
    output_final_state: bool = False,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = True,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Advance each sequence's state over its tokens; the state after each token is stored.

    It starts from the block of its first token or, in a verification, of the last accepted one.

    Args:
        q, k: [batch, tokens, key heads, key size] (BSND), without a batch in TND; v, g, beta alike
            with value heads, g with the key size.
        initial_state: [blocks, heads, value size, key size], or key size first.
        cu_seqlens: [sequences + 1] over all tokens.
        ssm_state_indices: a block for each token, [tokens] or [sequences, tokens of each]; without
            it each sequence has the block of its number.

    Returns:
        Outputs as v, zero for tokens of no sequence, and the states if output_final_state.
    """
    if initial_state is None:
        raise NotImplementedError("emulated NPU has no fla_npu.recurrent_kda without initial_state")
    bound = None if not safe_gate else LOWER_BOUND if lower_bound is None else lower_bound
    decay = decay_of(g.flatten(0, -3), A_log, dt_bias, use_gate_in_kernel, bound)
    if use_beta_sigmoid_in_kernel:
        beta = beta.float().sigmoid() * (2.0 if allow_neg_eigval else 1.0)
    tokens = _tokens(q, k, v, decay, beta)
    states = initial_state if inplace_final_state else initial_state.clone()
    by_value = states if state_v_first else states.transpose(-1, -2)
    output = torch.zeros(tokens[2].shape, dtype=torch.float32)
    for sequence, (start, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        if end <= start:
            continue
        blocks = _blocks(ssm_state_indices, sequence, start, end)
        state = by_value[_first(blocks, num_accepted_tokens, sequence)].float()
        for token, block in zip(range(start, end), blocks, strict=True):
            row = slice(token, token + 1)
            state, output[row] = _run(state, tokens, row, scale, use_qk_l2norm_in_kernel)
            by_value[block] = state.to(states.dtype)
    return output.to(v.dtype).reshape(v.shape), states if output_final_state else None


def _tokens(*parts: torch.Tensor) -> list[torch.Tensor]:
    """q, k, v, decay, beta, [tokens, value heads, ...] each."""
    q, k, v, decay, beta = parts
    heads = decay.shape[1]
    flat = [part.flatten(0, -3) for part in (q, k, v)]
    flat[:2] = [part.repeat_interleave(heads // part.shape[1], 1) for part in flat[:2]]
    return [*flat, decay, beta.reshape(-1, heads)]


def _run(
    state: torch.Tensor,
    tokens: list[torch.Tensor],
    rows: slice,
    scale: float | None,
    normalise: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence's rows of ``tokens``: its state afterwards and its outputs."""
    q, k, v, decay, beta = (part[rows] for part in tokens)
    return replacements_kda.run(state, q, k, v, decay, beta, scale, normalise)


def _blocks(indices: torch.Tensor | None, sequence: int, start: int, end: int) -> list[int]:
    if indices is None:
        return [sequence] * (end - start)
    rows: list[int] = (
        indices[start:end] if indices.dim() == 1 else indices[sequence, : end - start]
    ).tolist()
    return rows


def _first(blocks: list[int], accepted: torch.Tensor | None, sequence: int) -> int:
    """The block that a sequence starts from."""
    return blocks[0 if accepted is None else int(accepted[sequence]) - 1]


@operator(
    "chunk_kda_fwd",
    namespace=NAMESPACE,
    source="flash-linear-attention-npu: API page of chunk_kda_fwd",
    limits="q, k, v of one 16-bit float; chunk_size 64; layout BSND",
    missing="other layouts; intermediate results for a backward pass are None",
)
def chunk_kda_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    chunk_size: int,
    *,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Sequence[int] | None = None,
    chunk_indices: Sequence[int] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,  # noqa: N803
    dt_bias: torch.Tensor | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
) -> tuple[Any, ...]:
    """Whole prompts, in float32 and token by token: chunks only change how it is computed.

    Args: as ``recurrent_kda``; cu_seqlens and chunk_indices are on the host, initial_state is
        [sequences, heads, key size, value size], or value size first.

    Returns:
        Outputs as v, final states as initial_state or None, and ten times None: documented are
        intermediate results for a backward pass there.
    """
    if layout != "BSND" or return_intermediate_states:
        raise NotImplementedError(
            f"emulated NPU has fla_npu.chunk_kda_fwd in the layout BSND without intermediate "
            f"states; asked for {layout}, return_intermediate_states={return_intermediate_states}"
        )
    bound = None if not safe_gate else LOWER_BOUND if lower_bound is None else lower_bound
    gate_bound = bound if use_gate_in_kernel else None
    decay = decay_of(g.flatten(0, -3), A_log, dt_bias, use_gate_in_kernel, gate_bound)
    tokens = _tokens(q, k, v, decay, beta)
    batch, length = v.shape[:2]
    bounds = list(cu_seqlens) if cu_seqlens is not None else range(0, (batch + 1) * length, length)
    output = torch.zeros(tokens[2].shape, dtype=torch.float32)
    final = []
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        state = torch.zeros(tokens[2].shape[1], v.shape[-1], k.shape[-1])
        if initial_state is not None:
            given = initial_state[sequence].float()
            state = given if state_v_first else given.transpose(-1, -2)
        rows = slice(start, end)
        state, output[rows] = _run(state, tokens, rows, scale, normalise=False)
        final.append(state if state_v_first else state.transpose(-1, -2))
    states = torch.stack(final).contiguous() if output_final_state else None
    if states is not None and initial_state is not None:
        states = states.to(initial_state.dtype)
    return (output.to(v.dtype).reshape(v.shape), states, *(None for _ in range(10)))


@recurrent_kda.check
def _check_recurrent_kda(given: Arguments) -> None:
    _check_tokens(given, (torch.bfloat16,))
    require(given.layout in ("BSND", "TND"), f"layout is {given.layout!r}; it is BSND or TND")
    require(given.k.shape[-1] == 128, f"the key size is {given.k.shape[-1]}; it is 128")
    require(given.v.shape[-1] in (128, 256), f"the value size is {given.v.shape[-1]}; 128 or 256")
    require_dtype("cu_seqlens", given.cu_seqlens, INTEGERS)
    lengths = given.cu_seqlens.diff()
    require(
        bool(((lengths >= 0) & (lengths <= LONGEST_REQUEST)).all()),
        f"cu_seqlens {given.cu_seqlens.tolist()} has steps outside 0 to {LONGEST_REQUEST}",
    )
    if given.initial_state is not None:
        require_dtype("initial_state", given.initial_state, (torch.bfloat16, torch.float32))
        _check_states(given)
        require_dense_states("initial_state", given.initial_state)
    require(
        given.num_accepted_tokens is None or given.ssm_state_indices is not None,
        "num_accepted_tokens without ssm_state_indices",
    )


@chunk_kda_fwd.check
def _check_chunk_kda(given: Arguments) -> None:
    _check_tokens(given, HALF_FLOATS)
    require(given.chunk_size == 64, f"chunk_size is {given.chunk_size}; it is 64")
    if given.initial_state is not None:
        _check_states(given)


def _check_tokens(given: Arguments, dtypes: tuple[torch.dtype, ...]) -> None:
    require_dtype("q", given.q, dtypes)
    require_same_dtype(q=given.q, k=given.k, v=given.v)
    require_shape("k", given.k, tuple(given.q.shape))
    heads, key_heads = given.v.shape[-2], given.k.shape[-2]
    require(heads % key_heads == 0, f"{heads} value heads are no multiple of {key_heads}")
    require_shape("g", given.g, (*given.v.shape[:-1], given.k.shape[-1]))
    require_shape("beta", given.beta, tuple(given.v.shape[:-1]))
    require_dtype("g", given.g, FLOATS)
    require_dtype("beta", given.beta, FLOATS)
    if given.use_gate_in_kernel:
        require(given.A_log is not None, "A_log is None; use_gate_in_kernel needs it")
        require_dtype("A_log", given.A_log, (torch.float32,))
    else:
        require(
            given.A_log is None and given.dt_bias is None,
            "A_log and dt_bias are for use_gate_in_kernel",
        )


def _check_states(given: Arguments) -> None:
    sizes = (given.v.shape[-1], given.k.shape[-1])
    last = sizes if given.state_v_first else sizes[::-1]
    require_shape("initial_state", given.initial_state, (None, given.v.shape[-2], *last))
