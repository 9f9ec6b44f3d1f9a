# SPDX-License-Identifier: Apache-2.0
"""Packages of kernels by Ascend that vllm-ascend 0.30.0rc2 imports where it needs them.

``fla_npu.ops.ascendc`` has those of linear attention, for gated delta nets and Kimi delta
attention; ``cann_ops_transformer`` has ``mla_prolog``. Their kernels here are operators of the
package's namespace::

    @operator("causal_conv1d_update", namespace="fla_npu", source="...")
    def causal_conv1d_update(...): ...

An installed package is never hidden: the names are offered only where there is none.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from emulated_npu.operators import registry

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
"""Names for inference in the real fla_npu. One without a kernel here can be imported, since
vllm-ascend imports several whatever the model, and raises NotImplementedError when it is called."""

PACKAGES = {"fla_npu.ops.ascendc": FORWARD_NAMES, "cann_ops_transformer": ()}
"""Module that holds the kernels -> names that it offers besides those that have one here."""


def install() -> None:
    """Make these modules importable, unless a distribution or a program offers their package."""
    for name, names in PACKAGES.items():
        package = name.partition(".")[0]
        if package not in sys.modules and importlib.util.find_spec(package) is None:
            _offer(name, package, names)


def _offer(whole: str, package: str, names: Sequence[str]) -> None:
    parts = whole.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        module = ModuleType(name, "Stand-in of the emulated NPU; see emulated_npu.")
        module.__spec__ = importlib.util.spec_from_loader(name, loader=None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, own_name = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own_name, module)
    kernels = registry.namespace_functions(package)
    for name in {*names, *kernels}:
        setattr(module, name, kernels.get(name) or registry.missing(name, whole))

    def missing_attribute(name: str) -> Any:
        """What the real one lacks too, or has for another device or for training."""
        raise AttributeError(f"emulated NPU has no {whole}.{name}")

    module.__getattr__ = missing_attribute  # type: ignore[method-assign]
