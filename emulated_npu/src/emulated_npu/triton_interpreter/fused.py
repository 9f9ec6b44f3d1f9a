# SPDX-License-Identifier: Apache-2.0
"""Triton kernels that vllm-ascend's fusion passes put into graphs without asking for Triton.

``fuse_qknorm_rope`` and ``fuse_muls_add`` are on by default and replace what they find by
``torch.ops.vllm.qkv_rmsnorm_rope`` and ``muls_add``. vllm-ascend sets up what their kernels need
only where vLLM finds Triton: the number of cores, the slices of triton-ascend's language, and the
first operator itself. A device always has Triton; here the set-up is done where vLLM finds none.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from emulated_npu.import_hooks import after_import
from emulated_npu.triton_interpreter import backend, language

UTILITIES = "vllm_ascend.ops.triton.triton_utils"
OPERATORS = "vllm_ascend.ops"
FUSED_ROPE = "vllm_ascend.ops.triton.linearnorm.split_qkv_rmsnorm_rope"


def install() -> None:
    """Give both as soon as vllm-ascend's modules are imported."""
    after_import(UTILITIES, _give_cores_and_slices)
    after_import(OPERATORS, _register_fused_rope)


def _give_cores_and_slices(utilities: ModuleType) -> None:
    utilities._NUM_AICORE = backend.CUBE_CORES  # type: ignore[attr-defined]
    utilities._NUM_VECTORCORE = backend.VECTOR_CORES  # type: ignore[attr-defined]
    for function in (language.extract_slice, language.insert_slice, language.get_element):
        setattr(utilities, function.__name__, function)


def _register_fused_rope(_operators: ModuleType) -> None:
    importlib.import_module(FUSED_ROPE)
