# SPDX-License-Identifier: Apache-2.0
"""Blocks of a draft's layers that their own kernels divide.

A layer takes its block size from ``--block-size``, which the target's kernels settle: 32 tokens for
DeepSeek-V4, unless another is asked for. Kernels of a dense draft read blocks of 128.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mkv_ascend.adapters.common.kv_cache.layer_facts import WITHOUT_KERNEL_BLOCKS
from mkv_ascend.layout.requirements import block_of_kernels


def with_kernel_blocks(
    specs: Mapping[str, Any], layers: Mapping[str, Any], draft_layers: Collection[str]
) -> dict[str, Any]:
    """``specs``, by layer, those of the draft in blocks that a kernel block of theirs divides."""
    return {
        name: _of_draft(spec, layers[name]) if name in draft_layers else spec
        for name, spec in specs.items()
    }


def _of_draft(spec: Any, layer: Any) -> Any:
    if isinstance(spec, WITHOUT_KERNEL_BLOCKS):
        return spec
    supported = layer.get_attn_backend().get_supported_kernel_block_sizes()
    sizes = [size for size in supported if isinstance(size, int)]
    block = block_of_kernels(spec.block_size, sizes or [1])
    if block == spec.block_size:
        return spec
    if getattr(spec, "page_size_padded", None) is not None:
        # Beside states hosts pad pages: that of a smaller block, and plans do without.
        spec = dataclasses.replace(spec, page_size_padded=None)
    return spec.copy_with_new_block_size(block)
