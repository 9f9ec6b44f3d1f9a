# SPDX-License-Identifier: Apache-2.0
"""The emulated stand-in for the library flash_attn_npu_v3; its folder is on the import path only
when EMULATED_NPU_FA3 asks for it."""

from emulated_npu.operators.fa3 import flash_attn_with_kvcache

__all__ = ["flash_attn_with_kvcache"]
