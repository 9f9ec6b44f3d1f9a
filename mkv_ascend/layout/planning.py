# SPDX-License-Identifier: Apache-2.0
"""The one plan of KV caches: from the layers of target and draft to groups, pools and blocks.

The engine core, its workers, ``mkv-ascend explain`` and ``mkv-ascend check`` all call ``plan``.
They differ in the source of the layers: a running model, or a model built without memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mkv_ascend.layout.component import (
    ONE_BLOCK,
    Component,
    LayerLayout,
    PageShape,
    StateExtent,
    Storage,
    TokenExtent,
    exact_quotient,
    used_bytes,
)
from mkv_ascend.layout.grouping import (
    NULL_BLOCKS,
    AdmissionError,
    Cost,
    Group,
    Grouping,
    longest_request,
    require_one_request,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.plan import CachePlan, make_plan
from mkv_ascend.layout.requirements import LayerRequirements, Request, Retention, block_size_choices


@dataclass(frozen=True)
class CachedLayer:
    """One layer with a cache of its own.

    ``layout``: its cache, at the layer's own block size. ``retention``: what one request holds in
    it. ``backend``: name of the backend that serves it. ``table``: layers with different ``table``
    never share a KV group. vLLM recognises a group of states by the one spec of its layers.
    """

    layout: LayerLayout
    retention: Retention
    backend: str = "-"
    table: str = ""


@dataclass(frozen=True)
class PlanInputs:
    """Everything that determines a plan.

    ``layers``: in the order of execution. ``request``: the longest request, and the tokens that a
    decoding step adds; memory is measured with it. ``admitted_tokens``: largest number of tokens of
    one step when the scheduler admits a request. ``groups``: the layers of each group, if they are
    given; None if they are planned. ``shapes``: blocks in a page of each of these groups; none
    where a page is a block. ``shared_pages``: whether a page may hold several blocks of a group.
    ``hash_block_size``: tokens that vLLM hashes at a time for prefix caching, when the user has
    fixed it: it must divide every block size. ``memory_bytes``: for all caches, where it is known:
    a page is a small part of it. ``kv_transfer``: whether a KV connector registers the
    caches: it counts one number of blocks, of one size, for all layers. ``aliases``: layers without
    a cache, each with the layer whose cache it reads.
    """

    layers: tuple[CachedLayer, ...]
    request: Request
    admitted_tokens: int
    groups: tuple[tuple[str, ...], ...] | None = None
    shapes: tuple[PageShape, ...] = ()
    shared_pages: bool = True
    hash_block_size: int | None = None
    memory_bytes: int | None = None
    kv_transfer: bool = False
    aliases: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ServingPlan:
    """Groups and pools, and how many requests fit into memory. Made by ``plan``."""

    inputs: PlanInputs
    grouping: Grouping
    plan: CachePlan

    @cached_property
    def backends(self) -> Mapping[str, str]:
        return {layer.layout.layer: layer.backend for layer in self.inputs.layers}

    @property
    def admission_pages(self) -> tuple[int, ...]:
        """For each group, the pages that the scheduler needs to admit the longest request."""
        return tuple(group.pages(self._admitted) for group in self.grouping.groups)

    def num_blocks(self, memory_bytes: int) -> int:
        """Pages that fit into ``memory_bytes``, the null block's included; may be 0."""
        return self.plan.num_blocks_in(memory_bytes)

    def max_concurrency(self, num_blocks: int) -> float:
        """Number of requests of full length that fit at once, without the null block."""
        pages = sum(group.page_share(self._admitted) for group in self.grouping.groups)
        return max(num_blocks - NULL_BLOCKS, 0) / (pages or 1)

    def refusal(self, num_blocks: int) -> str | None:
        """Why no engine starts with ``num_blocks`` blocks; None if one does."""
        try:
            require_one_request(self.grouping, self._admitted, num_blocks)
        except AdmissionError as error:
            return str(error)
        return None

    def shortened(self, num_blocks: int) -> ServingPlan | None:
        """This plan for the longest request that ``num_blocks`` blocks hold; None for none."""
        longest = longest_request(self.grouping.groups, self._admitted, num_blocks)
        if longest == 0:
            return None
        request = replace(self.inputs.request, tokens=longest)
        return replace(self, inputs=replace(self.inputs, request=request))

    @property
    def _admitted(self) -> Request:
        return replace(self.inputs.request, tokens_per_step=self.inputs.admitted_tokens)


def plan(inputs: PlanInputs) -> ServingPlan:
    """Groups, pools and costs of these layers.

    Raises:
        GroupingError: no block size is allowed.
        LayoutError: a size does not divide, or two blocks would share a byte.
    """
    layouts = {layer.layout.layer: layer.layout for layer in inputs.layers}
    needs = _requirements(inputs)
    if inputs.groups is not None:
        groups = _given(inputs, needs, inputs.groups)
    else:
        groups = plan_pages(
            needs,
            inputs.request,
            inputs.memory_bytes,
            hash_block_size=inputs.hash_block_size,
            one_block=inputs.kv_transfer or not inputs.shared_pages,
        ).groups
    pools = make_plan(
        fitted_groups(layouts, groups),
        shapes=[group.shape for group in groups],
        kv_transfer=inputs.kv_transfer,
        aliases=dict(inputs.aliases),
    )
    cost = Cost(
        groups=len(groups),
        pages=sum(group.pages(inputs.request) for group in groups),
        page_bytes=pools.bytes_per_block,
        needed_bytes=sum(need.needed_bytes(inputs.request) for need in needs),
    )
    return ServingPlan(inputs, Grouping(groups, cost), pools)


def recurrent_table(layout: LayerLayout, state_type: str) -> str:
    """``CachedLayer.table`` of a layer with states; ``state_type`` names what computes them."""
    parts = (f"{part.dtype}{part.extent}" for part in layout.components)
    return f"{state_type} {' '.join(parts)}"


def _requirements(inputs: PlanInputs) -> list[LayerRequirements]:
    """Of all layers, with the block sizes that the plan may choose from.

    A layer whose kernels split blocks may get any block size that they divide, if its layout says
    what they take (``kernel_block``). Others keep their own: states, DeepSeek-V4's layers, and
    layers whose kernels take the block as it is.
    """
    own = [x.layout.tokens_per_block for x in inputs.layers if _kernel_block(x.layout)]
    largest = math.lcm(*own, inputs.hash_block_size or 1)
    is_fixed = inputs.kv_transfer or inputs.groups is not None
    needs = []
    for layer in inputs.layers:
        sizes: tuple[int, ...] = ()
        kernel_block = _kernel_block(layer.layout)
        if not is_fixed and kernel_block is not None:
            sizes = block_size_choices(layer.layout.tokens_per_block, kernel_block, largest)
        needs.append(requirements_of(layer.layout, layer.retention, sizes, table=layer.table))
    return needs


def _kernel_block(layout: LayerLayout) -> int | None:
    """The kernel block of a layer that may get another block size; None where it may not."""
    states = any(isinstance(part.extent, StateExtent) for part in layout.components)
    # Of all ranks' tokens, where a block stands for those of one.
    replicated = (layout.kernel_block or 0) > layout.tokens_per_block
    if states or replicated or layout.kind is Kind.COMPRESSED_MLA:
        return None
    return layout.kernel_block


def _given(
    inputs: PlanInputs, needs: Sequence[LayerRequirements], given: Sequence[tuple[str, ...]]
) -> tuple[Group, ...]:
    """The given groups; each holds as many blocks as its layer with the most."""
    known = {need.name: need for need in needs}
    groups = []
    for names, shape in zip(given, inputs.shapes or (ONE_BLOCK,) * len(given), strict=True):
        members = [known[name] for name in names]
        held = [need.retention.blocks(need.block_size, inputs.request) for need in members]
        most = members[held.index(max(held))]
        groups.append(
            Group(
                layers=names,
                block_size=most.block_size,
                blocks=max(held),
                has_draft=any(need.role is Role.DRAFT for need in members),
                retention=most.retention,
                shape=shape,
            )
        )
    return tuple(groups)


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
    parts = [part for part in layout.components if not part.overlay]
    states = [part.bytes_per_block for part in parts if isinstance(part.extent, StateExtent)]
    rows = []
    for part in parts:
        if isinstance(part.extent, TokenExtent):
            what = f"layer {layout.layer}, {part.name}: bytes of a block by rows"
            rows.append(exact_quotient(part.bytes_per_block, own, what))
    return LayerRequirements(
        name=layout.layer,
        role=layout.role,
        kind=layout.kind,
        retention=retention,
        block_sizes=(own, *(size for size in block_sizes if size != own)),
        row_bytes=tuple(rows),
        state_bytes=(*states, layout.padding_bytes) if layout.padding_bytes else tuple(states),
        takes_strides=layout.storage is Storage.PAGED,
        kernel_block=layout.kernel_block,
        table=table,
        is_packed=layout.storage is Storage.PACKED,
    )


def fitted(layout: LayerLayout, block_size: int) -> LayerLayout:
    """``layout``, made for the layer's own block size, with blocks that stand for other tokens.

    LayoutError where the rows of a component, or the kernel block, do not divide.
    """

    def fitted_part(part: Component) -> Component:
        if isinstance(part.extent, StateExtent):
            return part
        what = f"layer {layout.layer}, {part.name}: rows for {block_size} tokens"
        rows = exact_quotient(part.extent.tokens * block_size, layout.tokens_per_block, what)
        return replace(part, extent=TokenExtent(rows, part.extent.heads, part.extent.dim))

    parts = tuple(map(fitted_part, layout.components))
    return replace(
        layout,
        components=parts,
        page_bytes=used_bytes(parts) + layout.padding_bytes,
        tokens_per_block=block_size,
    )


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
