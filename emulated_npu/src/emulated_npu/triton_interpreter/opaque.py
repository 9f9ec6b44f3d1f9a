# SPDX-License-Identifier: Apache-2.0
"""Triton wrappers that stand in code which Dynamo traces, as operators that it need not look into.

On a device Dynamo takes a Triton kernel into the graph as it is. It knows neither interpreted
kernels nor their replacements here. So each wrapper below is an operator of ``torch.ops`` here,
with a fake kernel that gives the shapes of its results. Its launch stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from emulated_npu.import_hooks import after_import

NAMESPACE = "emulated_triton"
SPLIT = "fused_qkvzba_split_reshape_cat"
SPLIT_MODULE = f"vllm_ascend.ops.triton.fla.{SPLIT.removesuffix('_cat')}"
NORM = "layer_norm_fwd_npu"
NORM_MODULE = "vllm_ascend.ops.triton.layernorm_gated"
ROPE = "rope_forward_triton"
ROPE_MODULE = "vllm_ascend.ops.triton.rope"

SCHEMAS = {
    SPLIT: "(Tensor mixed_qkvz, Tensor mixed_ba, int num_heads_qk, int num_heads_v, int head_qk, "
    "int head_v) -> (Tensor, Tensor, Tensor, Tensor)",
    NORM: "(Tensor x, Tensor weight, Tensor? bias, float eps, Tensor? z, int? group_size, "
    "bool norm_before_gate, bool is_rms_norm) -> (Tensor, Tensor, Tensor)",
    # Rotates in place.
    ROPE: "(Tensor(a!) q, Tensor(b!) k, Tensor? cos, Tensor? sin, Tensor? cos_sin_cache, "
    "Tensor? positions, int rope_dim, bool is_neox_style) -> ()",
}

# Kept for the life of the process: torch forgets the operators when a Library goes.
_libraries: list[torch.library.Library] = []


def install() -> None:
    """Put the operators in the wrappers' places as soon as their modules are imported.

    After the replacements, which are what the operators then run.
    """
    after_import(SPLIT_MODULE, _make_split_opaque)
    after_import(NORM_MODULE, _make_norm_opaque)
    after_import(ROPE_MODULE, _make_rope_opaque)


def _define(name: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(name + SCHEMAS[name])
    library.impl(name, kernel, "PrivateUse1")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=library)
    _libraries.append(library)
    return getattr(getattr(torch.ops, NAMESPACE), name)


def _make_split_opaque(module: ModuleType) -> None:
    setattr(module, SPLIT, _define(SPLIT, getattr(module, SPLIT), _shapes_of_split))


def _shapes_of_split(
    mixed_qkvz: torch.Tensor,
    mixed_ba: torch.Tensor,
    num_heads_qk: int,
    num_heads_v: int,
    head_qk: int,
    head_v: int,
) -> tuple[torch.Tensor, ...]:
    tokens = mixed_qkvz.shape[0]
    return (
        mixed_qkvz.new_empty(tokens, 2 * num_heads_qk * head_qk + num_heads_v * head_v),
        mixed_qkvz.new_empty(tokens, num_heads_v, head_v),
        mixed_ba.new_empty(tokens, num_heads_v),
        mixed_ba.new_empty(tokens, num_heads_v),
    )


def _make_norm_opaque(module: ModuleType) -> None:
    original = getattr(module, NORM)

    def kernel(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        z: torch.Tensor | None,
        group_size: int | None,
        norm_before_gate: bool,
        is_rms_norm: bool,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        out, mean, rstd = original(
            x, weight, bias, eps, z, None, group_size, norm_before_gate, is_rms_norm
        )
        return out, rstd.new_empty(0) if mean is None else mean, rstd

    operator = _define(NORM, kernel, _shapes_of_norm)

    def layer_norm_fwd_npu(
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        eps: float,
        z: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
        group_size: int | None = None,
        norm_before_gate: bool = True,
        is_rms_norm: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        result, mean, rstd = operator(
            x, weight, bias, eps, z, group_size, norm_before_gate, is_rms_norm
        )
        result = result if out is None else out.copy_(result)
        return result, None if is_rms_norm else mean, rstd

    setattr(module, NORM, layer_norm_fwd_npu)


def _shapes_of_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    z: torch.Tensor | None,
    group_size: int | None,
    norm_before_gate: bool,
    is_rms_norm: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    groups = 1 if group_size is None else columns // group_size
    rstd = x.new_empty(groups * rows, dtype=torch.float32)
    return torch.empty_like(x), rstd.new_empty(0) if is_rms_norm else torch.empty_like(rstd), rstd


def _make_rope_opaque(module: ModuleType) -> None:
    """Layers with queries alone call it in traced code, those with keys in an operator of vLLM."""
    original = getattr(module, ROPE)

    def kernel(*arguments: Any) -> None:
        original(*arguments)

    operator = _define(ROPE, kernel, lambda *_: None)

    def rope_forward_triton(
        q: torch.Tensor,
        k: torch.Tensor,
        cos: torch.Tensor | None = None,
        sin: torch.Tensor | None = None,
        cos_sin_cache: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        rope_dim: int = -1,
        is_neox_style: bool = True,
        **eight_bit_outputs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        arguments = (cos, sin, cos_sin_cache, positions, rope_dim, is_neox_style)
        if any(value is not None for value in eight_bit_outputs.values()):
            return original(q, k, *arguments, **eight_bit_outputs)
        # The wrapper copies what has gaps, and rotates the copy.
        q, k = q.contiguous(), k.contiguous()
        operator(q, k, *arguments)
        return q, k

    setattr(module, ROPE, rope_forward_triton)
