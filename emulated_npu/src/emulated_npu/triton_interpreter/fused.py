# SPDX-License-Identifier: Apache-2.0
"""Triton kernels that vllm-ascend runs without asking for Triton.

Its fusion passes ``fuse_qknorm_rope`` and ``fuse_muls_add`` are on by default and replace what they
find by ``torch.ops.vllm.qkv_rmsnorm_rope`` and ``muls_add``. Attention of Qwen3.5 and Qwen3-VL
calls ``torch.ops.vllm.triton_split_qkv_rmsnorm_mrope``. vllm-ascend sets up what their kernels need
only where vLLM finds Triton: sizes of the device, the slices of triton-ascend's language, and the
operators themselves. A device always has Triton; here the set-up is done where vLLM finds none.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from emulated_npu.import_hooks import after_import
from emulated_npu.triton_interpreter import backend, language

UTILITIES = "vllm_ascend.ops.triton.triton_utils"
OPERATORS = "vllm_ascend.ops"
FUSED = "vllm_ascend.ops.triton.linearnorm"
FUSED_MODULES = (
    "split_qkv_rmsnorm_rope",
    "split_qkv_rmsnorm_mrope",
    "split_qkv_tp_rmsnorm_rope",
    "split_qkv_rmsnorm_rope_vnorm",  # since vllm-ascend 0.30
)
"""Modules of FUSED that register such an operator when they are imported."""


def install() -> None:
    """Give both as soon as vllm-ascend's modules are imported."""
    after_import(UTILITIES, _give_sizes_and_slices)
    after_import(OPERATORS, _register_fused)


def _give_sizes_and_slices(utilities: ModuleType) -> None:
    utilities._NUM_AICORE = backend.CUBE_CORES  # type: ignore[attr-defined]
    utilities._NUM_VECTORCORE = backend.VECTOR_CORES  # type: ignore[attr-defined]
    utilities._UB_SIZE_BYTES = backend.UNIFIED_BUFFER_BYTES  # type: ignore[attr-defined]
    for function in (language.extract_slice, language.insert_slice, language.get_element):
        setattr(utilities, function.__name__, function)


def _register_fused(_operators: ModuleType) -> None:
    for name in FUSED_MODULES:
        if importlib.util.find_spec(f"{FUSED}.{name}") is not None:
            importlib.import_module(f"{FUSED}.{name}")
