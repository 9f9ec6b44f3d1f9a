# SPDX-License-Identifier: Apache-2.0
"""The gated delta rule in chunks of tokens: the form that prefilling uses.

A chunk's tokens reach the state through w and u (the WY form of its updates, made by Triton
kernels of vllm-ascend); only the state goes from chunk to chunk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_dtype,
    require_rank,
    require_same_dtype,
    require_shape,
)

CHUNK_TOKENS = 64
"""Tokens of a chunk where chunk_size is not given."""


def _chunks(
    cu_seqlens: Sequence[int] | None, num_tokens: int, chunk_size: int | None
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """For each sequence its number and the (start, end) of its chunks, in tokens."""
    size = chunk_size or CHUNK_TOKENS
    bounds = [0, num_tokens] if cu_seqlens is None else list(cu_seqlens)
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        yield sequence, [(at, min(at + size, end)) for at in range(start, end, size)]


@operator(
    "chunk_gated_delta_rule_fwd_h",
    namespace="_C_ascend",
    source="vllm-ascend: binding and on-device test of the ChunkGatedDeltaRuleFwdH kernel",
    limits="batch of 1 (sequences by cu_seqlens); k, w, u of one 16-bit float; g float32",
    missing="gk, use_exp2, transpose_state_layout, save_new_value = False",
)
def chunk_gated_delta_rule_fwd_h(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor | None = None,
    *,
    gk: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool | None = False,
    chunk_size: int | None = None,
    save_new_value: bool | None = True,
    cu_seqlens: Sequence[int] | None = None,
    chunk_indices: Sequence[int] | None = None,
    use_exp2: bool | None = False,
    transpose_state_layout: bool | None = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The state before each chunk, the corrected values, and the state at the end.

    Args:
        k: [1, key heads, tokens, key size]; w: [1, heads, tokens, key size].
        u: [1, heads, tokens, value size]; g: log of the decay, summed within each chunk.
        initial_state: [sequences, heads, key size, value size].

    Returns:
        h [1, heads, chunks, key size, value size], values as u, and the final state.
    """
    if gk is not None or use_exp2 or transpose_state_layout or not save_new_value:
        raise NotImplementedError(
            "emulated NPU has no gk, use_exp2, transpose_state_layout or save_new_value=False in "
            "_C_ascend.chunk_gated_delta_rule_fwd_h"
        )
    heads, tokens, key_size = w.shape[1:]
    keys = k.float().repeat_interleave(heads // k.shape[1], 1)[0]
    decay = torch.zeros(heads, tokens) if g is None else g.float()[0]
    values = torch.zeros(heads, tokens, u.shape[-1])
    before: list[torch.Tensor] = []
    final: list[torch.Tensor] = []
    for sequence, chunks in _chunks(cu_seqlens, tokens, chunk_size):
        state = torch.zeros(heads, key_size, u.shape[-1])
        if initial_state is not None:
            state = initial_state[sequence].float()
        for start, end in chunks:
            before.append(state)
            part = slice(start, end)
            values[:, part] = u[0, :, part].float() - w[0, :, part].float() @ state
            to_end = (decay[:, end - 1 : end] - decay[:, part]).exp()
            state = state * decay[:, end - 1, None, None].exp()
            state = state + keys[:, part].transpose(1, 2) @ (values[:, part] * to_end[..., None])
        final.append(state)
    final_dtype = k.dtype if initial_state is None else initial_state.dtype
    return (
        torch.stack(before, 1).unsqueeze(0).to(k.dtype),
        values.unsqueeze(0).to(u.dtype),
        torch.stack(final).to(final_dtype),
    )


@operator(
    "chunk_fwd_o",
    namespace="_C_ascend",
    source="vllm-ascend: binding and on-device test of the ChunkFwdO kernel",
    limits="batch of 1 (sequences by cu_seqlens); q, k, v, h of one 16-bit float; g float32",
    missing="transpose_state_layout; g_gamma is ignored, as in the kernel",
)
def chunk_fwd_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    h: torch.Tensor,
    scale: float,
    *,
    g: torch.Tensor | None = None,
    g_gamma: torch.Tensor | None = None,
    cu_seqlens: Sequence[int] | None = None,
    chunk_indices: Sequence[int] | None = None,
    chunk_size: int | None = None,
    transpose_state_layout: bool | None = False,
) -> torch.Tensor:
    """Outputs from the state before each chunk and the corrected values within it.

    Args: as chunk_gated_delta_rule_fwd_h gives and takes them; q as k.

    Returns:
        [1, heads, tokens, value size].
    """
    if transpose_state_layout:
        raise NotImplementedError(
            "emulated NPU has no transpose_state_layout in _C_ascend.chunk_fwd_o"
        )
    heads, tokens = v.shape[1:3]
    shared_by = heads // q.shape[1]
    queries = q.float().repeat_interleave(shared_by, 1)[0]
    keys = k.float().repeat_interleave(shared_by, 1)[0]
    decay = torch.zeros(heads, tokens) if g is None else g.float()[0]
    result = torch.zeros(v.shape[1:])
    chunk = 0
    for _, chunks in _chunks(cu_seqlens, tokens, chunk_size):
        for start, end in chunks:
            part = slice(start, end)
            gates = decay[:, part]
            between = (gates[:, :, None] - gates[:, None, :]).tril().exp().tril()
            scores = (queries[:, part] @ keys[:, part].transpose(1, 2)) * between
            carried = (queries[:, part] @ h[0, :, chunk].float()) * gates.exp()[..., None]
            result[:, part] = (carried + scores @ v[0, :, part].float()) * scale
            chunk += 1
    return result.unsqueeze(0).to(v.dtype)


@chunk_gated_delta_rule_fwd_h.check
def _check_fwd_h(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    g: torch.Tensor | None,
    initial_state: torch.Tensor | None,
    cu_seqlens: Sequence[int] | None,
) -> None:
    for name, tensor in (("k", k), ("w", w), ("u", u)):
        require_dtype(name, tensor, HALF_FLOATS)
        require_rank(name, tensor, 4)
    require_same_dtype(k=k, w=w, u=u)
    _check_shapes(k, u, g, cu_seqlens)
    require_shape("w", w, (1, u.shape[1], u.shape[2], k.shape[3]))
    if initial_state is not None:
        sequences = 1 if cu_seqlens is None else len(cu_seqlens) - 1
        require_shape(
            "initial_state", initial_state, (sequences, u.shape[1], k.shape[3], u.shape[3])
        )


@chunk_fwd_o.check
def _check_fwd_o(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    h: torch.Tensor,
    g: torch.Tensor | None,
    cu_seqlens: Sequence[int] | None,
) -> None:
    require_dtype("q", q, HALF_FLOATS)
    require_same_dtype(q=q, k=k, v=v, h=h)
    require_shape("q", q, tuple(k.shape))
    _check_shapes(k, v, g, cu_seqlens)
    require_shape("h", h, (1, v.shape[1], None, k.shape[3], v.shape[3]))


def _check_shapes(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor | None, cu_seqlens: Sequence[int] | None
) -> None:
    require(k.shape[0] == 1, f"k has a batch of {k.shape[0]}; give sequences by cu_seqlens")
    heads, tokens = v.shape[1:3]
    require(
        tokens == k.shape[2] and heads % k.shape[1] == 0,
        f"k has {k.shape[1]} heads and {k.shape[2]} tokens, the values {heads} and {tokens}",
    )
    if g is not None:
        require_dtype("g", g, (torch.float32,))
        require_shape("g", g, (1, heads, tokens))
    if cu_seqlens is not None:
        rises = all(a <= b for a, b in itertools.pairwise(cu_seqlens))
        require(
            rises and cu_seqlens[0] == 0 and cu_seqlens[-1] == tokens,
            f"cu_seqlens {list(cu_seqlens)} does not rise from 0 to {tokens}",
        )


OF_0_30 = "vllm-ascend 0.30: binding of the kernel, in the place of that of 0.23"

chunk_gated_delta_rule_fwd_h_vllm = operator(
    "chunk_gated_delta_rule_fwd_h_vllm",
    namespace="_C_ascend",
    source=OF_0_30,
    limits="as chunk_gated_delta_rule_fwd_h",
)(chunk_gated_delta_rule_fwd_h.kernel)
chunk_gated_delta_rule_fwd_h_vllm.check(_check_fwd_h)

chunk_fwd_o_vllm = operator(
    "chunk_fwd_o_vllm", namespace="_C_ascend", source=OF_0_30, limits="as chunk_fwd_o"
)(chunk_fwd_o.kernel)
chunk_fwd_o_vllm.check(_check_fwd_o)
