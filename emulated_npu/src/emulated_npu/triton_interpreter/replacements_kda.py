# SPDX-License-Identifier: Apache-2.0
"""Kimi delta attention (KDA): the gated delta rule with a decay for each channel of the keys.

Per head, with state S [value, key], decay a = exp(g) in [key], step size beta, and normalised
query and key (paper "Kimi Linear", 2025):  S = S diag(a);  S = S + beta (v - S k) k^T;  o = S q.
The decay is made of a projection x: g = -exp(A_log) softplus(x + bias), or, with a lower bound,
g = bound sigmoid(exp(A_log) (x + bias)).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional

NORM_EPSILON = 1e-6
MODULES = (
    "vllm.model_executor.layers.fla.ops.kda",  # vLLM 0.23
    "vllm.third_party.flash_linear_attention.ops.kda",
)
WHY = "its chunk kernels are tuned for GPUs by running them, which interpreted takes minutes"


def decay_of(
    projected: torch.Tensor,
    rate: torch.Tensor,
    bias: torch.Tensor | None,
    size: int,
    lower_bound: float | None = None,
) -> torch.Tensor:
    """Log of the decay, float32 ``[tokens, heads, size]``; ``projected`` has as many elements."""
    heads = rate.numel()
    wide = projected.float().reshape(-1, heads, size)
    if bias is not None:
        wide = wide + bias.float().reshape(heads, size)
    speed = rate.float().reshape(heads, 1).exp()
    if lower_bound is None:
        return -speed * functional.softplus(wide)
    return lower_bound * (speed * wide).sigmoid()


def fused_kda_gate(
    g: torch.Tensor,
    A: torch.Tensor,  # noqa: N803 (the wrapper's own parameter name)
    head_k_dim: int,
    g_bias: torch.Tensor | None = None,
    lower_bound: float | None = None,
    **_others: Any,
) -> torch.Tensor:
    """``decay_of`` for ``g`` [tokens, heads * head_k_dim]."""
    return decay_of(g, A, g_bias, head_k_dim, lower_bound)


def chunk_kda_with_fused_gate(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    raw_g: torch.Tensor,
    beta: torch.Tensor,
    A_log: torch.Tensor,  # noqa: N803
    g_bias: torch.Tensor | None,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    lower_bound: float | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Whole prompts, token by token and in float32.

    Args:
        q, k, v, raw_g: [1, tokens, heads, size]; beta: [1, tokens, heads].
        initial_state: [sequences, heads, value size, key size]; cu_seqlens: [sequences + 1].

    Returns:
        Outputs as v, and the final states, float32, as initial_state.
    """
    size = k.shape[-1]
    g = decay_of(raw_g[0].flatten(1), A_log, g_bias, size, lower_bound)
    bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    output = torch.zeros(v.shape[1:])
    final = []
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        if initial_state is None:
            state = torch.zeros(v.shape[2], v.shape[3], size)
        else:
            state = initial_state[sequence].float()
        rows = slice(start, end)
        state, output[rows] = run(
            state, q[0, rows], k[0, rows], v[0, rows], g[rows], beta[0, rows],
            scale, use_qk_l2norm_in_kernel,
        )  # fmt: skip
        final.append(state)
    return output.to(v.dtype)[None], torch.stack(final) if output_final_state else None


def fused_recurrent_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    use_qk_l2norm_in_kernel: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    **_others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decodes: the states of ``ssm_state_indices`` [sequences] are advanced in place.

    Args: as ``chunk_kda_with_fused_gate``, with ``g`` the log of the decay and ``initial_state``
        [blocks, heads, value size, key size]. Block 0 and below is padding, as in the kernel.
    """
    if not inplace_final_state or initial_state is None or ssm_state_indices is None:
        raise NotImplementedError("emulated NPU has fused_recurrent_kda in place, by block only")
    assert cu_seqlens is not None
    output = torch.zeros_like(v)
    blocks = ssm_state_indices.tolist()
    for sequence, (start, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        block, rows = blocks[sequence], slice(start, end)
        if end <= start or block <= 0:
            continue
        state, result = run(
            initial_state[block].float(), q[0, rows], k[0, rows], v[0, rows], g[0, rows],
            beta[0, rows], scale, use_qk_l2norm_in_kernel,
        )  # fmt: skip
        output[0, rows] = result.to(output.dtype)
        initial_state[block] = state.to(initial_state.dtype)
    return output, initial_state


def run(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None,
    normalise: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence: its state afterwards and its outputs ``[tokens, heads, value size]``."""
    query, key, value, beta = (part.float() for part in (query, key, value, beta))
    if normalise:
        query, key = unit(query), unit(key)
    query = query * (key.shape[-1] ** -0.5 if scale is None else scale)
    outputs = []
    for q, k, v, a, b in zip(query, key, value, decay.float().exp(), beta, strict=True):
        state = state * a[:, None, :]
        error = (v - torch.einsum("hvk,hk->hv", state, k)) * b[:, None]
        state = state + error[:, :, None] * k[:, None, :]
        outputs.append(torch.einsum("hvk,hk->hv", state, q))
    return state, torch.stack(outputs) if outputs else value


def unit(vectors: torch.Tensor) -> torch.Tensor:
    """``vectors`` of length 1 in the last dimension."""
    return vectors * torch.rsqrt(vectors.square().sum(-1, keepdim=True) + NORM_EPSILON)


FUNCTIONS: tuple[tuple[str, Callable[..., Any], str], ...] = (
    ("fused_kda_gate", fused_kda_gate, WHY),
    ("chunk_kda_with_fused_gate", chunk_kda_with_fused_gate, WHY),
    (
        "fused_recurrent_kda",
        fused_recurrent_kda,
        "interpreted, each head and eight values are a program of their own",
    ),
)
"""Name, kernel, reason."""

ROWS = tuple((module, *function) for module in MODULES for function in FUNCTIONS)
"""As ``replacements.Replacement``."""
