# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule as fla_npu has it: token by token, and over whole prompts.

Per head, with state S [value, key], decay a = exp(g), and the rule of Yang et al., "Gated Delta
Networks" (2024):  S = a S;  S = S + beta (v - S k) k^T;  o = S q.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from emulated_npu.custom_operators.gated_delta_rule import (
    advance,
    check_recurrent_arguments,
    delta_rule_inputs,
    npu_recurrent_gated_delta_rule,
)
from emulated_npu.linear_attention import NAMESPACE
from emulated_npu.linear_attention.strides import require_dense_states
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_dtype,
    require_same_dtype,
    require_shape,
)

LONGEST_REQUEST = 8
"""Tokens of one request that the recurrent operators document."""

SEQUENCE_FIRST, HEAD_FIRST = ("BSND", "TND"), ("BNSD", "NTD")
"""Layouts of q, k and v; those without a batch have one dimension less."""


@operator(
    "recurrent_gated_delta_rule",
    namespace=NAMESPACE,
    source="flash-linear-attention-npu: README of RecurrentGatedDeltaRule",
    limits="query, key, value, beta bfloat16; state bfloat16 or float32, blocks may lie apart "
    "(CANN 9.1.0); g float32; at most 8 tokens of a request",
    missing="gk (a decay for each channel)",
    writes=("state",),
)
def recurrent_gated_delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    state: torch.Tensor,
    *,
    beta: torch.Tensor,
    scale: float = 1.0,
    actual_seq_lengths: torch.Tensor,
    ssm_state_indices: torch.Tensor,
    num_accepted_tokens: torch.Tensor | None = None,
    g: torch.Tensor | None = None,
    gk: torch.Tensor | None = None,
) -> torch.Tensor:
    """Advance each request's state over its tokens; the state after each token is stored.

    Args and result: as ``_C_ascend.npu_recurrent_gated_delta_rule``.
    """
    return npu_recurrent_gated_delta_rule.kernel(
        query, key, value, state, beta=beta, scale=scale, actual_seq_lengths=actual_seq_lengths,
        ssm_state_indices=ssm_state_indices, num_accepted_tokens=num_accepted_tokens, g=g, gk=gk,
    )  # fmt: skip


@recurrent_gated_delta_rule.check
def _check_recurrent(given: Arguments) -> None:
    check_recurrent_arguments(given)
    require_dense_states("state", given.state)
    require(given.g is not None or given.gk is not None, "g and gk are None; give one of them")
    lengths = given.actual_seq_lengths[1:]
    require(
        bool((lengths <= LONGEST_REQUEST).all()),
        f"actual_seq_lengths {lengths.tolist()} has more than {LONGEST_REQUEST} tokens",
    )


@operator(
    "chunk_gated_delta_rule_fwd",
    namespace=NAMESPACE,
    source="call of DeviceOperator.fla_gdn_prefill in vllm-ascend 0.30; the rule: Gated Delta "
    "Networks (2024)",
    limits="q, k, v, beta of one 16-bit float; g float32; chunk_size 64 or 128; one batch where "
    "cu_seqlens is given",
    missing="use_exp2, use_qk_l2norm_in_kernel, allow_neg_eigval; what a backward pass needs "
    "(disable_recompute must be true)",
)
def chunk_gated_delta_rule_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    chunk_size: int = 64,
    cu_seqlens: Sequence[int] | None = None,
    chunk_indices: Sequence[int] | None = None,
    scale: float | None = None,
    layout: str = "BSND",
    use_exp2: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    disable_recompute: bool = False,
    state_v_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Whole prompts, in float32 and token by token: chunks only change how it is computed.

    Args:
        q, k: [batch, tokens, key heads, key size] in the layout BSND, heads before tokens in BNSD.
        v: the same with value heads and value size.
        g: log of the decay, beta: step size, both [batch, tokens, value heads] in either layout.
        initial_state: [sequences, value heads, key size, value size], or with the value size first
            if state_v_first.
        cu_seqlens, chunk_indices: on the host; where each sequence and chunk begins.

    Returns:
        Outputs [batch, tokens, value heads, value size] in q's dtype, and the final states as
        initial_state, in its dtype (float32 without one), or None.
    """
    _refuse_missing(use_exp2, use_qk_l2norm_in_kernel, allow_neg_eigval, disable_recompute)
    if layout in HEAD_FIRST:
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    batch, tokens, heads, size = v.shape
    bounds = list(cu_seqlens) if cu_seqlens is not None else range(0, (batch + 1) * tokens, tokens)
    q, k, v, g, beta = (part.reshape(-1, *part.shape[2:]) for part in (q, k, v, g, beta))
    inputs = delta_rule_inputs(q, k, v, g, beta, scale)
    result = torch.zeros(batch * tokens, heads, size)
    final = []
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        state = torch.zeros(heads, size, k.shape[-1])
        if initial_state is not None:
            given = initial_state[sequence].float()
            state = given if state_v_first else given.transpose(-1, -2)
        for token in range(start, end):
            state, result[token] = advance(state, *(part[token] for part in inputs))
        final.append(state if state_v_first else state.transpose(-1, -2))
    outputs = result.reshape(batch, tokens, heads, size).to(q.dtype)
    if not output_final_state:
        return outputs, None
    states = torch.stack(final).contiguous()
    return outputs, states if initial_state is None else states.to(initial_state.dtype)


def _refuse_missing(exp2: bool, norm: bool, negative: bool, no_recompute: bool) -> None:
    named = {"use_exp2": exp2, "use_qk_l2norm_in_kernel": norm, "allow_neg_eigval": negative}
    asked = [name for name, value in named.items() if value]
    if not no_recompute:
        asked.append("disable_recompute=False")
    if asked:
        raise NotImplementedError(
            f"emulated NPU has no {', '.join(asked)} in fla_npu.chunk_gated_delta_rule_fwd"
        )


@chunk_gated_delta_rule_fwd.check
def _check_chunk(given: Arguments) -> None:
    require(
        given.layout in ("BSND", "BNSD"), f"layout is {given.layout!r}; emulated: BSND and BNSD"
    )
    require(given.chunk_size in (64, 128), f"chunk_size is {given.chunk_size}; it is 64 or 128")
    for name in ("q", "k", "v"):
        require_dtype(name, getattr(given, name), HALF_FLOATS)
    require_same_dtype(q=given.q, k=given.k, v=given.v, beta=given.beta)
    require_dtype("g", given.g, (torch.float32,))
    shapes = [tuple(part.shape) for part in (given.q, given.v)]
    if given.layout in HEAD_FIRST:
        shapes = [(batch, tokens, heads, size) for batch, heads, tokens, size in shapes]
    (batch, tokens, key_heads, key_size), (_, _, heads, value_size) = shapes
    require_shape("k", given.k, tuple(given.q.shape))
    require(shapes[1][:2] == (batch, tokens), f"v is {shapes[1][:2]} long, q {(batch, tokens)}")
    require(heads % key_heads == 0, f"{heads} value heads are no multiple of {key_heads}")
    require_shape("g", given.g, (batch, tokens, heads))
    require_shape("beta", given.beta, (batch, tokens, heads))
    sequences = batch
    if given.cu_seqlens is not None:
        bounds = list(given.cu_seqlens)
        sequences = len(bounds) - 1
        require(batch == 1, f"a batch of {batch} with cu_seqlens; sequences are given by it")
        rises = all(before < after for before, after in itertools.pairwise(bounds))
        require(
            rises and bounds[0] == 0 and bounds[-1] == tokens,
            f"cu_seqlens {bounds} does not rise from 0 to {tokens} without empty sequences",
        )
    if given.initial_state is not None:
        last = (value_size, key_size) if given.state_v_first else (key_size, value_size)
        require_shape("initial_state", given.initial_state, (sequences, heads, *last))
