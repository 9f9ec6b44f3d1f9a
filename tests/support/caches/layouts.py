# SPDX-License-Identifier: Apache-2.0
"""Layouts for tests of plans."""

from __future__ import annotations

from mkv_ascend.layout.component import (
    Component,
    Container,
    LayerLayout,
    StateExtent,
    Storage,
    TokenExtent,
)
from mkv_ascend.layout.kind import Kind, Role


def keys_and_values(
    layer: str,
    heads: int = 8,
    dim: int = 128,
    value_dim: int | None = None,
    *,
    block: int = 128,
    kernel_block: int | None = 128,
    role: Role = Role.TARGET,
    storage: Storage = Storage.SPLIT,
    padding: int = 0,
) -> LayerLayout:
    """Keys and values in bfloat16."""
    value_dim = value_dim or dim
    return LayerLayout(
        layer=layer,
        role=role,
        kind=Kind.FULL_ATTENTION,
        components=(
            Component("k", "bfloat16", TokenExtent(block, heads, dim)),
            Component("v", "bfloat16", TokenExtent(block, heads, value_dim)),
        ),
        storage=storage,
        page_bytes=block * heads * (dim + value_dim) * 2 + padding,
        tokens_per_block=block,
        kernel_block=kernel_block,
    )


def states(
    layer: str, conv: tuple[int, ...], ssm: tuple[int, ...], *, block: int = 1024
) -> LayerLayout:
    """A convolution's window and a recurrent state, in bfloat16."""
    components = (
        Component("conv", "bfloat16", StateExtent(conv)),
        Component("ssm", "bfloat16", StateExtent(ssm)),
    )
    return LayerLayout(
        layer=layer,
        role=Role.TARGET,
        kind=Kind.MAMBA,
        components=components,
        storage=Storage.SPLIT,
        page_bytes=sum(part.bytes_per_block for part in components),
        tokens_per_block=block,
        container=Container.LIST,
    )


MIB = 1 << 20
CONV_BYTES = 3 * 8192 * 2


def qwen3_next(groups: int = 3, layers: int = 12) -> list[list[LayerLayout]]:
    """Groups of states, then one of attention: as many layers each."""
    planned = [
        [states(f"layers.{4 * i + g}", (3, 8192), (32, 128, 128)) for i in range(layers)]
        for g in range(groups)
    ]
    attention = [
        keys_and_values(f"layers.{4 * i + groups}", 2, 256, block=1024) for i in range(layers)
    ]
    return [*planned, attention]
