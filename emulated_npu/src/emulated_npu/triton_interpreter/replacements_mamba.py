# SPDX-License-Identifier: Apache-2.0
"""Triton wrappers of Mamba2 and short convolutions that CPU kernels replace, and why each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emulated_npu.triton_interpreter.short_convolution import (
    causal_conv1d_fn,
    causal_conv1d_update,
    causal_conv1d_update_npu,
)
from emulated_npu.triton_interpreter.state_space import (
    mamba_chunk_scan_combined_varlen,
    selective_state_update,
)

ROWS: tuple[tuple[str, str, Callable[..., Any], str], ...] = (
    (
        "vllm.model_executor.layers.mamba.ops.causal_conv1d",
        "causal_conv1d_fn",
        causal_conv1d_fn,
        "the function of its grid puts other tensors in the place of arguments, which Triton's "
        "interpreter hands to the kernel as they are",
    ),
    (
        "vllm.model_executor.layers.mamba.ops.causal_conv1d",
        "causal_conv1d_update",
        causal_conv1d_update,
        "interpreted, it takes nine tenths of the time of a model. It serves where vllm-ascend "
        "finds no Triton",
    ),
    (
        "vllm_ascend.ops.triton.mamba.causal_conv1d",
        "causal_conv1d_update_npu",
        causal_conv1d_update_npu,
        "its kernel rounds inputs to float16 whatever their dtype, which a comparison with a "
        "float32 reference cannot have",
    ),
    (
        "vllm.model_executor.layers.mamba.ops.ssd_combined",
        "mamba_chunk_scan_combined_varlen",
        mamba_chunk_scan_combined_varlen,
        "its five kernels choose their blocks by timing them, which the emulated NPU cannot",
    ),
    (
        "vllm.model_executor.layers.mamba.ops.mamba_ssm",
        "selective_state_update",
        selective_state_update,
        "interpreted, it takes a program for every few rows of a state: hundreds for one token",
    ),
)
"""Module, name, kernel, reason."""
