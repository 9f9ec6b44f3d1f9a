# SPDX-License-Identifier: Apache-2.0
"""Operators that Dynamo can trace: real operators of ``torch.ops.npu``, as torch_npu has them.

Dynamo cannot trace a Python object that counts launches and lends memory. The operators below stand
in code that vLLM compiles, so they get a schema, a kernel for npu tensors, and a fake kernel, which
gives the shapes of their results. Their CPU kernels are plain functions of torch that never branch
on values, so the fake kernel is the kernel itself, on tensors without memory.

Attention and mixtures of experts are not traced: vLLM calls these through operators of its own,
which Dynamo does not look into.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from emulated_npu.operators import registry

NAMESPACE = "npu"
TRACED = (
    "npu_rms_norm",
    "npu_add_rms_norm",
    "npu_swiglu",
    "npu_clipped_swiglu",
    "npu_rotary_mul",
    # Called in traced code for queries alone; else by an operator of vLLM.
    "npu_mrope",
    "npu_fast_gelu",
    # What vllm-ascend's fusion passes look for in traced graphs, and what they put there instead.
    "npu_dynamic_quant",
    "npu_add_rms_norm_quant",
    "npu_add_rms_norm_dynamic_quant",
    "npu_dynamic_mx_quant",
    "npu_rms_norm_dynamic_mx_quant",
    "npu_add_rms_norm_dynamic_mx_quant",
)

UNTRACED = ("npu_fused_infer_attention_score",)
"""What vllm-ascend's context parallelism calls as ``torch.ops.npu.<name>``, in code that is not
traced: the namespace has torch_npu's Python object."""

TRACED_CUSTOM = ("npu_add_rms_norm_bias", "npu_gemma_rms_norm", "npu_rms_norm_cast")
"""The same of torch.ops._C_ascend, whose schemas come from the installed vllm-ascend."""


# Kept for the life of the process: torch forgets the operators when the Library goes.
_libraries: list[torch.library.Library] = []


def install() -> dict[str, Any]:
    """Define the traced operators of torch_npu; name -> what ``torch_npu.<name>`` shall be."""
    if not _libraries:
        library = torch.library.Library(NAMESPACE, "FRAGMENT")
        for name in TRACED:
            _define(library, name, registry.namespace_functions()[name])
        _libraries.append(library)
    namespace = getattr(torch.ops, NAMESPACE)
    for name in UNTRACED:
        setattr(namespace, name, registry.namespace_functions()[name])
    return {name: getattr(namespace, name) for name in TRACED}


def _define(
    library: torch.library.Library, name: str, operator: registry.Operator[..., Any]
) -> None:
    # torch_npu's whole numbers are no symbols: PyTorch then takes a dtype by its number.
    schema = torch.library.infer_schema(operator.kernel, mutates_args=()).replace("SymInt", "int")
    library.define(name + schema)
    for key in ("PrivateUse1", "CPU"):  # which says what a CPU tensor may not be
        library.impl(name, operator, key)
    torch.library.register_fake(f"{NAMESPACE}::{name}", operator.kernel, lib=library)


def give_fakes(library: torch.library.Library, namespace: str, defined: Collection[str]) -> None:
    """Fake kernels for the traced operators of vllm-ascend's own namespace that are defined."""
    kernels = registry.namespace_functions(namespace)
    fakes = {**{name: kernels[name].kernel for name in TRACED_CUSTOM}, **SHAPES}
    for name, fake in fakes.items():
        if name in defined:
            torch.library.register_fake(f"{namespace}::{name}", fake, lib=library)


def _shapes_of_all_reduce(
    _x1: torch.Tensor, _x2: torch.Tensor, residual: torch.Tensor, *_others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(residual), torch.empty_like(residual)


def _shapes_of_hc_pre(
    x: torch.Tensor, hc_fn: torch.Tensor, _scale: Any, _base: Any, hc_mult: int, *_others: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, hidden = x.shape[:-2], x.shape[-1]
    return (
        x.new_empty(*rows, hidden),
        hc_fn.new_empty(*rows, hc_mult),
        hc_fn.new_empty(*rows, hc_mult, hc_mult),
    )


def _shapes_of_hc_post(_x: torch.Tensor, residual: torch.Tensor, *_others: Any) -> torch.Tensor:
    return torch.empty_like(residual)


SHAPES: dict[str, Callable[..., Any]] = {
    "matmul_allreduce_add_rmsnorm": _shapes_of_all_reduce,
    "npu_hc_pre_v2": _shapes_of_hc_pre,
    "npu_hc_post": _shapes_of_hc_post,
}
"""Fake kernels of traced ones of torch.ops._C_ascend whose kernels are none: one talks to other
ranks, the others cannot run where Dynamo leaves the number of streams open."""
