# SPDX-License-Identifier: Apache-2.0
"""What the emulated ``fla_npu.ops.ascendc`` holds.

That is Ascend's package of kernels for linear attention; vllm-ascend 0.30.0rc2 imports it for gated
delta nets and Kimi delta attention. Its kernels here are operators of namespace ``fla_npu``::

    @operator("causal_conv1d_update", namespace="fla_npu", source="...")
    def causal_conv1d_update(...): ...

An installed fla_npu is never hidden: the names are offered only where there is none.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

from emulated_npu.operators import registry

NAMESPACE = PACKAGE = "fla_npu"
MODULE = "fla_npu.ops.ascendc"
PARENTS = (PACKAGE, "fla_npu.ops")

FORWARD_NAMES = (
    "causal_conv1d",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_fwd_o",
    "chunk_gated_delta_rule_fwd",
    "chunk_gated_delta_rule_fwd_h",
    "chunk_kda_fwd",
    "chunk_local_cumsum",
    "chunk_scaled_dot_kkt",
    "fast_gelu_custom",
    "kda_gate_cumsum",
    "recompute_w_u_fwd",
    "recurrent_gated_delta_rule",
    "recurrent_kda",
    "solve_tri",
)
"""Names for inference in the real module. One without a kernel here can be imported, since
vllm-ascend imports several whatever the model, and raises NotImplementedError when it is called."""


def install() -> None:
    """Make ``fla_npu.ops.ascendc`` importable, unless a distribution or a program offers it."""
    if PACKAGE in sys.modules or importlib.util.find_spec(PACKAGE) is not None:
        return
    for name in (*PARENTS, MODULE):
        module = ModuleType(name, "Stand-in of the emulated NPU; see emulated_npu.")
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, own_name = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own_name, module)
    _fill(sys.modules[MODULE])


def _fill(module: ModuleType) -> None:
    kernels = registry.namespace_functions(NAMESPACE)
    for name in {*FORWARD_NAMES, *kernels}:
        setattr(module, name, kernels.get(name) or registry.missing(name, MODULE))
    module.__getattr__ = _missing_attribute  # type: ignore[method-assign]


def _missing_attribute(name: str) -> Any:
    """``fla_npu.ops.ascendc.<name>`` that the real one lacks too, or has for training."""
    raise AttributeError(f"emulated NPU has no {MODULE}.{name}")
