# SPDX-License-Identifier: Apache-2.0
"""The one plan of KV caches: from the layers of target and draft to groups, pools and blocks.

The engine core, its workers, ``mkv-ascend explain`` and ``mkv-ascend check`` all call ``plan``.
They differ in the source of the layers: a running model, a model built without memory, or the
numbers of two config.json files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mkv_ascend.layout.admission import (
    NULL_BLOCKS,
    AdmissionError,
    longest_request,
    require_one_request,
)
from mkv_ascend.layout.component import LayerLayout, StateExtent, exact_quotient
from mkv_ascend.layout.fitting import fitted_groups, requirements_of
from mkv_ascend.layout.grouping import Cost, Group, Grouping
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.page_shape import ONE_BLOCK, PageShape
from mkv_ascend.layout.plan import CachePlan, make_plan
from mkv_ascend.layout.requirements import block_size_choices
from mkv_ascend.layout.retention import Request, Retention


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
        """Backend by layer."""
        return {layer.layout.layer: layer.backend for layer in self.inputs.layers}

    @property
    def admission_pages(self) -> tuple[int, ...]:
        """For each group, the pages that the scheduler needs to admit the longest request."""
        request = self._admitted()
        return tuple(group.pages(request) for group in self.grouping.groups)

    def num_blocks(self, memory_bytes: int) -> int:
        """Pages that fit into ``memory_bytes``, the null block's included; may be 0."""
        return self.plan.num_blocks_in(memory_bytes)

    def max_concurrency(self, num_blocks: int) -> float:
        """Number of requests of full length that fit at once, without the null block."""
        request = self._admitted()
        pages = sum(group.page_share(request) for group in self.grouping.groups)
        return max(num_blocks - NULL_BLOCKS, 0) / (pages or 1)

    def refusal(self, num_blocks: int) -> str | None:
        """Why no engine starts with ``num_blocks`` blocks; None if one does."""
        try:
            require_one_request(self.grouping, self._admitted(), num_blocks)
        except AdmissionError as error:
            return str(error)
        return None

    def shortened(self, num_blocks: int) -> ServingPlan | None:
        """This plan for the longest request that ``num_blocks`` blocks hold; None for none."""
        longest = longest_request(self.grouping.groups, self._admitted(), num_blocks)
        if longest == 0:
            return None
        request = replace(self.inputs.request, tokens=longest)
        return replace(self, inputs=replace(self.inputs, request=request))

    def _admitted(self) -> Request:
        return replace(self.inputs.request, tokens_per_step=self.inputs.admitted_tokens)


def plan(inputs: PlanInputs) -> ServingPlan:
    """Groups, pools and costs of these layers.

    Raises:
        GroupingError: no block size is allowed.
        LayoutError: a size does not divide, or two blocks would share a byte.
    """
    layouts = {layer.layout.layer: layer.layout for layer in inputs.layers}
    groups = _planned(inputs) if inputs.groups is None else _given(inputs)
    pools = make_plan(
        fitted_groups(layouts, groups),
        shapes=[group.shape for group in groups],
        kv_transfer=inputs.kv_transfer,
        aliases=dict(inputs.aliases),
    )
    needs = (requirements_of(layer.layout, layer.retention) for layer in inputs.layers)
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


def share_one_table(layers: Sequence[CachedLayer]) -> bool:
    """Whether all layers hold the same tokens in equal blocks, so that vLLM makes one group."""
    return len({(x.retention, x.layout.tokens_per_block, x.table) for x in layers}) == 1


def _planned(inputs: PlanInputs) -> tuple[Group, ...]:
    """The groups of the plan, and how their blocks lie in pages.

    A layer whose kernels split blocks may get any block size that they divide, if its layout says
    what they take (``kernel_block``). Others keep their own: states, DeepSeek-V4's layers, and
    layers whose kernels take the block as it is.
    """
    own = [x.layout.tokens_per_block for x in inputs.layers if _kernel_block(x.layout)]
    largest = math.lcm(*own, inputs.hash_block_size or 1)

    def block_sizes(layout: LayerLayout) -> tuple[int, ...]:
        kernel_block = _kernel_block(layout)
        if inputs.kv_transfer or kernel_block is None:
            return ()
        return block_size_choices(layout.tokens_per_block, kernel_block, largest)

    needs = [
        requirements_of(x.layout, x.retention, block_sizes(x.layout), table=x.table)
        for x in inputs.layers
    ]
    return plan_pages(
        needs,
        inputs.request,
        inputs.memory_bytes,
        hash_block_size=inputs.hash_block_size,
        one_block=inputs.kv_transfer or not inputs.shared_pages,
    ).groups


def _kernel_block(layout: LayerLayout) -> int | None:
    """The kernel block of a layer that may get another block size; None where it may not."""
    states = any(isinstance(part.extent, StateExtent) for part in layout.components)
    # Of all ranks' tokens, where a block stands for those of one.
    replicated = (layout.kernel_block or 0) > layout.tokens_per_block
    if states or replicated or layout.kind is Kind.COMPRESSED_MLA:
        return None
    return layout.kernel_block


def _given(inputs: PlanInputs) -> tuple[Group, ...]:
    """The given groups."""
    known = {layer.layout.layer: layer for layer in inputs.layers}
    given = inputs.groups or ()
    shapes = inputs.shapes or (ONE_BLOCK,) * len(given)
    return tuple(
        _group(inputs, [known[name] for name in names], shape)
        for names, shape in zip(given, shapes, strict=True)
    )


def _group(inputs: PlanInputs, layers: Sequence[CachedLayer], shape: PageShape) -> Group:
    """A given group; it holds as many blocks as its layer with the most."""
    blocks, most = 0, layers[0]
    for layer in layers:
        held = layer.retention.blocks(_rows(layer), inputs.request)
        if held > blocks:
            blocks, most = held, layer
    return Group(
        layers=tuple(layer.layout.layer for layer in layers),
        block_size=_rows(most),
        blocks=blocks,
        has_draft=any(layer.layout.role is Role.DRAFT for layer in layers),
        retention=most.retention,
        shape=shape,
    )


def _rows(layer: CachedLayer) -> int:
    what = f"layer {layer.layout.layer}: tokens of a block by tokens of a row"
    return exact_quotient(layer.layout.tokens_per_block, layer.retention.tokens_per_row, what)
