# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of the wrappers of the selective state space (Mamba2) that vLLM's mixer calls.

Per head, with state ``h`` [size, states], step ``d = softplus(dt + bias)`` and decay ``A < 0``:
``h = exp(A d) h + d x B'``, ``y = h C + D x``, all in float32, token after token. Source: Dao and
Gu, "Transformers are SSMs" (2024), and the docstrings of both wrappers. The wrapper for prompts
works in chunks, which gives the same sums in another order.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as functional

NULL_BLOCK_ID = 0

FORMS = (
    "selective_state_update on the emulated NPU takes states [blocks, heads, size, states] with "
    "state_batch_indices and out, without stochastic rounding"
)


def mamba_chunk_scan_combined_varlen(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803  (names of the wrapper's arguments, here and below)
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    chunk_size: int,
    cu_seqlens: torch.Tensor,
    cu_chunk_seqlens: torch.Tensor,
    last_chunk_indices: torch.Tensor,
    seq_idx: torch.Tensor,
    out: torch.Tensor,
    D: torch.Tensor | None = None,  # noqa: N803
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    initial_states: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Prompts, or parts of them, one after another.

    Args:
        x, z, out: [tokens, heads, size]; ``out`` is written.
        dt: [tokens, heads]; A, dt_bias: [heads]; D: [heads] or [heads, size].
        B, C: [tokens, groups, states].
        cu_seqlens: [requests + 1]; cu_chunk_seqlens: [chunks + 1]; last_chunk_indices:
            [requests]; seq_idx: request of each chunk, [chunks]. The chunks only say the same as
            cu_seqlens, which is checked.
        initial_states: [requests, heads, size, states].

    Returns:
        Last states [requests, heads, size, states] in state_dtype, or C's.

    Raises:
        NotImplementedError: states after every chunk are asked for.
        ValueError: chunks and requests do not fit together.
    """
    if return_intermediate_states:
        raise NotImplementedError(
            "the emulated NPU's chunk scan gives no states after every chunk "
            "(mamba_cache_mode 'all'); use 'align' or 'none'"
        )
    _check_chunks(cu_seqlens, cu_chunk_seqlens, last_chunk_indices, seq_idx, chunk_size)
    steps = _steps(dt, dt_bias, dt_softplus).clamp(*dt_limit)
    decay = torch.exp(A.float() * steps)[..., None, None]
    inputs = (steps.unsqueeze(-1) * x.float()).unsqueeze(-1)
    keys, queries = _rows(B, x.shape[1]), _rows(C, x.shape[1]).mT
    result = torch.zeros(x.shape, dtype=torch.float32)
    final = []
    for request, (start, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        zeros = torch.zeros(*x.shape[1:], B.shape[-1])
        state = zeros if initial_states is None else initial_states[request].float()
        for token in range(start, end):
            state = state * decay[token] + inputs[token] * keys[token]
            result[token] = (state @ queries[token]).squeeze(-1)
        final.append(state)
    out.copy_(_finished(result, x, D, z))
    return torch.stack(final).to(C.dtype if state_dtype is None else state_dtype)


def selective_state_update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,  # noqa: N803
    B: torch.Tensor,  # noqa: N803
    C: torch.Tensor,  # noqa: N803
    D: torch.Tensor | None,  # noqa: N803
    dt_bias: torch.Tensor | None,
    z: torch.Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: torch.Tensor | None = None,
    dst_state_batch_indices: torch.Tensor | None = None,
    null_block_id: int = NULL_BLOCK_ID,
    out: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    is_blackwell: bool = False,
    enable_stochastic_rounding: bool = False,
    cache_philox_rounds: int = 0,
) -> None:
    """One token per request, or the tokens of a verification of drafts.

    A verification starts from the state that was left in the column of the last accepted token,
    and leaves the state after each token in a column of its own, for any number to be accepted.

    Args:
        state: [blocks, heads, size, states], written.
        x, dt, z, out: [tokens, heads, size]; ``out`` is written.
        A: [heads, size, states]; D, dt_bias: [heads, size]; B, C: [tokens, groups, states].
        state_batch_indices, dst_state_batch_indices: blocks to read and to write, [requests] or
            [requests, columns]; the block null_block_id reads as zeros and is not written.
        num_accepted_tokens: [requests]; cu_seqlens: [requests + 1].

    Raises:
        NotImplementedError: a form that no layer of vLLM 0.23.0 asks for.
    """
    if state_batch_indices is None or out is None or enable_stochastic_rounding or state.dim() != 4:
        raise NotImplementedError(FORMS)
    read = state_batch_indices.reshape(state_batch_indices.shape[0], -1)
    written = (read if dst_state_batch_indices is None else dst_state_batch_indices).view_as(read)
    starts = list(range(len(read) + 1)) if cu_seqlens is None else cu_seqlens.tolist()
    steps = _steps(dt, dt_bias, dt_softplus)
    keys, queries = _rows(B, x.shape[1]), _rows(C, x.shape[1]).mT
    result = torch.zeros(x.shape, dtype=torch.float32)
    for request in range(len(read)):
        accepted = 1 if num_accepted_tokens is None else int(num_accepted_tokens[request])
        source = int(read[request, max(accepted - 1, 0)])
        current = state[source].float()
        current = torch.zeros_like(current) if source == null_block_id else current
        for column, token in enumerate(range(starts[request], starts[request + 1])):
            step = steps[token].unsqueeze(-1)
            moved = step * x[token].float().unsqueeze(-1) * keys[token]
            current = current * torch.exp(A.float() * step) + moved
            result[token] = (current @ queries[token]).squeeze(-1)
            target = int(written[request, column if num_accepted_tokens is not None else 0])
            if null_block_id not in (source, target):
                state[target] = current.to(state.dtype)
    out.copy_(_finished(result, x, D, z))


def _steps(dt: torch.Tensor, bias: torch.Tensor | None, softplus: bool) -> torch.Tensor:
    wide = dt.float() if bias is None else dt.float() + bias.float()
    return functional.softplus(wide) if softplus else wide


def _rows(groups: torch.Tensor, heads: int) -> torch.Tensor:
    """float32 [tokens, heads, 1, states], of [tokens, groups, states]."""
    return groups.float().repeat_interleave(heads // groups.shape[1], dim=1).unsqueeze(-2)


def _finished(
    result: torch.Tensor, x: torch.Tensor, skip: torch.Tensor | None, z: torch.Tensor | None
) -> torch.Tensor:
    if skip is not None:
        result = result + x.float() * skip.float().reshape(x.shape[1], -1)
    return result if z is None else result * functional.silu(z.float())


def _check_chunks(
    cu_seqlens: torch.Tensor,
    cu_chunk_seqlens: torch.Tensor,
    last_chunk_indices: torch.Tensor,
    seq_idx: torch.Tensor,
    chunk_size: int,
) -> None:
    starts, ends = cu_chunk_seqlens[:-1], cu_chunk_seqlens[1:]
    lengths = ends - starts
    requests = torch.searchsorted(cu_seqlens[1:].contiguous(), starts.contiguous(), right=True)
    if (
        bool((lengths <= 0).any() or (lengths > chunk_size).any())
        or ends[last_chunk_indices].tolist() != cu_seqlens[1:].tolist()
        or seq_idx.tolist() != requests.tolist()
    ):
        raise ValueError(
            f"chunks of at most {chunk_size} tokens that end at {ends.tolist()}, of requests "
            f"{seq_idx.tolist()} with their last chunks {last_chunk_indices.tolist()}, do not "
            f"divide the requests that end at {cu_seqlens[1:].tolist()}"
        )
