# SPDX-License-Identifier: Apache-2.0
"""The emulated stand-in for the library flash_attn_npu_v3; its folder is on the import path only
when MKV_ASCEND_EMULATOR_FA3 asks for it."""

from mkv_ascend.emulator.operators.fa3 import flash_attn_with_kvcache

__all__ = ["flash_attn_with_kvcache"]
