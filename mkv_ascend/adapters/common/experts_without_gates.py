# SPDX-License-Identifier: Apache-2.0
"""Experts of two matrices, without a gate, as Nemotron-H's (squared ReLU between them).

What is replaced for them differs between hosts; this is what replacements share.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation, apply_moe_activation

ALLOWED = SimpleNamespace(is_cuda_alike=lambda: True)
"""A platform, for code that asks nothing but whether it may build such a layer."""


def has_no_gate(activation: Any) -> bool:
    """Whether vLLM's ``activation`` takes the first matrix's rows as they are."""
    return isinstance(activation, MoEActivation) and not activation.is_gated


def activated(activation: MoEActivation, rows: torch.Tensor) -> torch.Tensor:
    """``rows`` of the first matrix after vLLM's own ``activation``."""
    output: torch.Tensor = apply_moe_activation(activation, torch.empty_like(rows), rows)
    return output


def lacks_the_first_matrix(shared: Any) -> bool:
    """Whether vllm-ascend would not find the first matrix of shared experts: it has no gate.

    It is asked for as ``gate_up_proj``. Whoever sets that registers no module a second time, so
    that its weights are loaded and counted once.
    """
    return shared is not None and not hasattr(shared, "gate_up_proj")
