# SPDX-License-Identifier: Apache-2.0
"""torch_npu.op_plugin.atb._atb_ops: loads the library of fused transformer operators (ATB)."""

from __future__ import annotations


def _register_atb_extensions() -> None:
    """Nothing to load: the emulated ATB operators are registered when torch_npu is imported."""
