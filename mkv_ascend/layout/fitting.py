# SPDX-License-Identifier: Apache-2.0
"""Between layouts and grouping: what a layout requires, and the layout that fits its group.

A recipe makes a layer's layout for the layer's own block size. If grouping chooses another block
size, the layout must follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mkv_ascend.layout.component import (
    Component,
    LayerLayout,
    StateExtent,
    Storage,
    TokenExtent,
    exact_quotient,
)
from mkv_ascend.layout.grouping import Group
from mkv_ascend.layout.requirements import LayerRequirements
from mkv_ascend.layout.retention import Retention


def requirements_of(
    layout: LayerLayout,
    retention: Retention,
    block_sizes: Iterable[int] = (),
    *,
    table: str = "",
) -> LayerRequirements:
    """What grouping must know about the layer of ``layout``.

    ``block_sizes``: tokens per block that its kernels accept beside its own, counted as its spec
    counts them: rows, where a row stands for several tokens (``retention.tokens_per_row``). A page
    that its spec pads is planned with its padding, which only pages of layers that take strides
    have.
    """
    what = f"layer {layout.layer}: tokens of a block by tokens of a row"
    own = exact_quotient(layout.tokens_per_block, retention.tokens_per_row, what)
    rows, states = [], []
    for part in layout.components:
        if part.overlay:
            continue
        if isinstance(part.extent, StateExtent):
            states.append(part.bytes_per_block)
        else:
            what = f"layer {layout.layer}, {part.name}: bytes of a block by rows"
            rows.append(exact_quotient(part.bytes_per_block, own, what))
    if layout.padding_bytes:
        states.append(layout.padding_bytes)
    return LayerRequirements(
        name=layout.layer,
        role=layout.role,
        kind=layout.kind,
        retention=retention,
        block_sizes=(own, *(size for size in block_sizes if size != own)),
        row_bytes=tuple(rows),
        state_bytes=tuple(states),
        takes_strides=layout.storage is Storage.PAGED,
        kernel_block=layout.kernel_block,
        table=table,
        is_packed=layout.storage is Storage.PACKED,
    )


def fitted(layout: LayerLayout, block_size: int) -> LayerLayout:
    """``layout`` with blocks of another size.

    ``block_size``: tokens that a block stands for.
    LayoutError where the rows of a component, or the kernel block, do not divide.
    """
    parts = tuple(_fitted_part(layout, part, block_size) for part in layout.components)
    used = sum(part.bytes_per_block for part in parts if not part.overlay)
    return replace(
        layout,
        components=parts,
        page_bytes=used + layout.padding_bytes,
        tokens_per_block=block_size,
    )


def _fitted_part(layout: LayerLayout, part: Component, block_size: int) -> Component:
    if isinstance(part.extent, TokenExtent):
        what = f"layer {layout.layer}, {part.name}: rows for {block_size} tokens"
        rows = exact_quotient(part.extent.tokens * block_size, layout.tokens_per_block, what)
        return replace(part, extent=replace(part.extent, tokens=rows))
    return part


def fitted_groups(
    layouts: Mapping[str, LayerLayout], groups: Iterable[Group]
) -> tuple[tuple[LayerLayout, ...], ...]:
    """The layouts of each group, as ``make_plan`` takes them."""
    return tuple(
        tuple(
            fitted(layouts[name], group.block_size * group.retention.tokens_per_row)
            for name in group.layers
        )
        for group in groups
    )
