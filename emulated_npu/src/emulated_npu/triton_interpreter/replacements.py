# SPDX-License-Identifier: Apache-2.0
"""Triton wrappers of recurrent layers, replaced by CPU kernels at the same boundary.

Everything else is interpreted. These are not, each for the reason given in ``REPLACEMENTS``. A
replacement takes the wrapper's arguments and counts one launch, but the wrapper starts several
kernels. So the counts of launches are too low for prefills with such layers.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from emulated_npu import counters
from emulated_npu.custom_operators.gated_delta_rule import advance, delta_rule_inputs
from emulated_npu.import_hooks import after_import
from emulated_npu.recording import map_tensors, record_results
from emulated_npu.triton_interpreter import replacements_kda, replacements_mamba

NORM_EPSILON = 1e-6
"""Epsilon of the wrapper's own normalisation of queries and keys."""


@dataclass(frozen=True)
class Replacement:
    """One wrapper: module and name, the CPU kernel, and why it is not interpreted."""

    module: str
    name: str
    kernel: Callable[..., Any]
    why: str


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **_others: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gated delta rule over whole prompts, token by token and in float32.

    Args:
        q, k: [1, tokens, key heads, key size]; v: [1, tokens, heads, value size].
        g: log of the decay, beta: step size, both [1, tokens, heads].
        initial_state: [sequences, heads, key size, value size]; cu_seqlens: [sequences + 1].

    Returns:
        Outputs as v, in q's dtype, and the final states, float32, as initial_state.
    """
    if use_qk_l2norm_in_kernel:
        q, k = l2norm_fwd(q), l2norm_fwd(k)
    tokens = delta_rule_inputs(q[0], k[0], v[0], g[0], beta[0], scale)
    bounds = [0, v.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    result = torch.zeros(v.shape[1:], dtype=torch.float32)
    final = []
    for sequence, (start, end) in enumerate(itertools.pairwise(bounds)):
        if initial_state is None:
            state = torch.zeros(v.shape[2], v.shape[3], k.shape[3])
        else:
            state = initial_state[sequence].float().transpose(-1, -2)
        for token in range(start, end):
            state, result[token] = advance(state, *(part[token] for part in tokens))
        final.append(state.transpose(-1, -2))
    states = torch.stack(final).contiguous() if output_final_state else None
    return result.unsqueeze(0).to(q.dtype), states


def l2norm_fwd(
    x: torch.Tensor, eps: float = NORM_EPSILON, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x / sqrt(sum(x^2) + eps) over the last dimension, computed in float32."""
    wide = x.float()
    norm = torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return (wide * norm).to(output_dtype or x.dtype)


def fused_qkvzba_split_reshape_cat(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Projections that lie together per key head, apart: all q, k and v; z; b; a.

    Args:
        mixed_qkvz: [tokens, key heads * (q, k, v and z of one key head)].
        mixed_ba: [tokens, key heads * (b and a of one key head)].

    Returns:
        [tokens, q | k | v of all heads], z [tokens, heads, value size], b and a [tokens, heads].
    """
    tokens, shared = mixed_qkvz.shape[0], num_heads_v // num_heads_qk
    values = shared * head_v
    per_head = mixed_qkvz.reshape(tokens, num_heads_qk, -1)
    q, k, v, z = per_head.split([head_qk, head_qk, values, values], dim=-1)
    b, a = mixed_ba.reshape(tokens, num_heads_qk, -1).split([shared, shared], dim=-1)
    qkv = torch.cat([part.reshape(tokens, -1) for part in (q, k, v)], dim=-1)
    rest = z.reshape(tokens, num_heads_v, head_v), *(x.reshape(tokens, -1) for x in (b, a))
    # With one key head these would be views, and an operator's results are memory of their own.
    return (qkv, *(part.clone(memory_format=torch.contiguous_format) for part in rest))


REPLACEMENTS = (
    Replacement(
        "vllm_ascend.ops.triton.fla.chunk",
        "chunk_gated_delta_rule",
        chunk_gated_delta_rule,
        "interpreted, its chunk kernels overflow in bfloat16 and give wrong tokens; and it refuses "
        "float32, which comparisons with a reference need",
    ),
    Replacement(
        "vllm_ascend.ops.triton.fla.fused_qkvzba_split_reshape",
        "fused_qkvzba_split_reshape_cat",
        fused_qkvzba_split_reshape_cat,
        "it only moves data, and interpreted takes most of the time of a step",
    ),
    Replacement(
        "vllm_ascend.ops.triton.fla.l2norm",
        "l2norm_fwd",
        l2norm_fwd,
        "interpreted, it takes long for little: its grid is all 40 cores, whatever the size",
    ),
    *(
        Replacement(module, "l2norm_fwd", l2norm_fwd, "as that of vllm-ascend")
        for module in (
            "vllm.model_executor.layers.fla.ops.l2norm",  # vLLM 0.23
            "vllm.third_party.flash_linear_attention.ops.l2norm",
        )
    ),
    *(Replacement(*row) for row in (*replacements_kda.ROWS, *replacements_mamba.ROWS)),
)

ONLY_IN_SOME_VERSIONS = frozenset({"causal_conv1d_update_npu"})
"""Functions that not every served version of vllm-ascend has."""


def install() -> None:
    """Replace each wrapper as soon as its module is imported."""
    for replacement in REPLACEMENTS:
        after_import(replacement.module, functools.partial(_replace, replacement))


def _replace(replacement: Replacement, module: ModuleType) -> None:
    original = getattr(module, replacement.name, None)
    if original is None and replacement.name in ONLY_IN_SOME_VERSIONS:
        return
    if not callable(original):
        raise ImportError(
            f"{replacement.module} has no function {replacement.name}; the emulated NPU serves "
            "vllm-ascend 0.23.0 and 0.30.0rc2, each with the vLLM of its number"
        )
    wrapper = _on_device(replacement)
    wrapper.emulated_npu_original = original  # type: ignore[attr-defined]
    setattr(module, replacement.name, wrapper)


def _on_device(replacement: Replacement) -> Callable[..., Any]:
    """The CPU kernel on aliases of npu tensors, counted as one launch."""

    name = f"triton.{replacement.name}"

    @functools.wraps(replacement.kernel)
    def wrapper(*arguments: Any, **named_arguments: Any) -> Any:
        result, launched = record_results(name, replacement.kernel, arguments, named_arguments)
        if launched:
            return result
        counters.record_launch(name)
        aliases = [map_tensors(value, _native().cpu_alias) for value in arguments]
        named = {
            key: map_tensors(value, _native().cpu_alias) for key, value in named_arguments.items()
        }
        with torch.no_grad():
            return map_tensors(replacement.kernel(*aliases, **named), _native().npu_alias)

    return wrapper


def _native() -> Any:
    # Late: kernels and their tests need no native extension.
    return importlib.import_module("emulated_npu.device.native")
