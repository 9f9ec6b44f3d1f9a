# SPDX-License-Identifier: Apache-2.0
"""From the layers of two models to their plan: block sizes, backends, specs, layouts, groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mkv_ascend.attention import ascend_backends as backends
from mkv_ascend.attention.entry import BackendEntry, DeviceGeneration
from mkv_ascend.attention.request import Environment, LayerRequest
from mkv_ascend.attention.selection import SelectionOptions, select_backends
from mkv_ascend.commands.explain_models import ModelLayer
from mkv_ascend.commands.explain_specs import (
    AscendMLAAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
    Spec,
)
from mkv_ascend.layout.component import dtype_bytes
from mkv_ascend.layout.demand import Holding, Request, Span
from mkv_ascend.layout.fitting import fitted_groups, group_layouts
from mkv_ascend.layout.grouping import Grouping, GroupingOptions
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import CachePlan, make_plan
from mkv_ascend.layout.recipes import largest_kernel_block, layout_of
from mkv_ascend.layout.registry import LayerFacts
from mkv_ascend.layout.report import OtherGrouping

__all__ = [
    "KERNEL_BLOCK",
    "Findings",
    "NamedLayer",
    "Planned",
    "plan_layers",
    "specs_of",
    "state_problem",
]

KERNEL_BLOCK = 128
"""Tokens of a block where vllm-ascend is not told otherwise, and of a block of its kernels."""


@dataclass(frozen=True)
class NamedLayer:
    """A layer with its name, the model it is of, and the dtype of its cache."""

    name: str
    role: Role
    dtype: str
    layer: ModelLayer


@dataclass(frozen=True)
class Planned:
    """What explaining came to."""

    grouping: Grouping
    plan: CachePlan
    backends: Mapping[str, str]


@dataclass(frozen=True)
class Findings:
    """A plan with what the report says of it. ``models``: role and description of each model."""

    models: tuple[tuple[str, str], ...]
    request: Request
    planned: Planned
    other: OtherGrouping | None
    other_absent: str
    notes: tuple[str, ...]


def specs_of(layers: Sequence[NamedLayer], num_draft_tokens: int) -> dict[str, Spec]:
    """The spec of each layer, with block and page sizes as vllm-ascend 0.23.0 sets them.

    Where the target has a recurrent state, the attention block is made so large that its keys are
    as many bytes as that state, and every smaller page is padded to that block and the convolution
    state (``vllm_ascend/patch/platform/patch_mamba_config.py``, ``NPUModelRunner.
    get_kv_cache_spec``).
    """
    block_size, padded = _sizes(layers)
    specs = {named.name: _spec(named, block_size, num_draft_tokens) for named in layers}
    if padded is None:
        return specs
    return {
        name: replace(spec, page_size_padded=padded) if spec.page_size_bytes < padded else spec
        for name, spec in specs.items()
    }


def _sizes(layers: Sequence[NamedLayer]) -> tuple[int, int | None]:
    """Tokens per block, and the bytes that pages are padded to, None for no padding."""
    target = [named for named in layers if named.role is Role.TARGET]
    states = next((named for named in target if named.layer.states), None)
    attention = next((named for named in target if not named.layer.states), None)
    if states is None or attention is None:
        return KERNEL_BLOCK, None
    item = dtype_bytes(attention.dtype)
    key_bytes = attention.layer.num_kv_heads * attention.layer.head_size * item
    sizes = [math.prod(shape) * dtype_bytes(states.dtype) for shape in states.layer.states]
    if len(sizes) == 1:
        # Refused by vllm-ascend (state_problem says so); padded to the attention page here.
        return KERNEL_BLOCK, 2 * KERNEL_BLOCK * key_bytes
    block_size = KERNEL_BLOCK * -(-max(sizes) // (KERNEL_BLOCK * key_bytes))
    return block_size, 2 * block_size * key_bytes + min(sizes)


def state_problem(layers: Sequence[NamedLayer]) -> str | None:
    """Why vllm-ascend 0.23.0 refuses the target's states; None where it does not."""
    target = [named for named in layers if named.role is Role.TARGET]
    states = next((named for named in target if named.layer.states), None)
    attention = next((named for named in target if not named.layer.states), None)
    if states is None or attention is None:
        return None
    largest = max(math.prod(shape) for shape in states.layer.states) * dtype_bytes(states.dtype)
    row = attention.layer.num_kv_heads * attention.layer.head_size * dtype_bytes(attention.dtype)
    if largest % (KERNEL_BLOCK * row) == 0:
        return None
    return (
        f"vllm-ascend 0.23.0 refuses this target (patch_mamba_config.py: a state of {largest} "
        f"bytes is no multiple of a kernel block's keys, {KERNEL_BLOCK * row} bytes); vLLM's "
        "figures are those of its grouping alone"
    )


def _spec(named: NamedLayer, block_size: int, num_draft_tokens: int) -> Spec:
    layer = named.layer
    if layer.states:
        return MambaSpec(
            block_size=block_size,
            shapes=layer.states,
            dtypes=(named.dtype,) * len(layer.states),
            num_speculative_blocks=num_draft_tokens,
        )
    if layer.vectors:
        sparse = len(layer.vectors) == 3
        return AscendMLAAttentionSpec(
            block_size,
            1,
            layer.head_size,
            named.dtype,
            sparse_head_dim=layer.vectors if sparse else None,  # type: ignore[arg-type]
        )
    if layer.window:
        return SlidingWindowSpec(
            block_size,
            layer.num_kv_heads,
            layer.head_size,
            named.dtype,
            sliding_window=layer.window,
        )
    return FullAttentionSpec(block_size, layer.num_kv_heads, layer.head_size, named.dtype)


def plan_layers(
    layers: Sequence[NamedLayer],
    specs: Mapping[str, Spec],
    request: Request,
    options: GroupingOptions,
) -> Planned:
    """Backends, groups and the plan of ``layers``.

    Raises SelectionError, GroupingError or LayoutError when something cannot be served or planned.
    """
    chosen = _choose_backends(layers)
    layouts, holdings = {}, {}
    for named in layers:
        spec, entry = specs[named.name], chosen[named.name]
        layouts[named.name] = layout_of(spec, _facts(named, spec, entry))
        holdings[named.name] = _holding(named.layer, spec)
    grouping = group_layouts(layouts, holdings, request, options)
    plan = make_plan(fitted_groups(layouts, grouping), block_outer=True)
    return Planned(grouping, plan, {name: entry.name for name, entry in chosen.items()})


def _choose_backends(layers: Sequence[NamedLayer]) -> dict[str, BackendEntry]:
    environment = Environment(DeviceGeneration.A2)
    requests = [_request(named) for named in layers]
    choices = select_backends(requests, SelectionOptions(), environment)
    return {choice.request.name: choice.backend for choice in choices}


def _request(named: NamedLayer) -> LayerRequest:
    layer = named.layer
    own = None
    if layer.states:
        entry = backends.GATED_DELTA_NET if len(layer.states) > 1 else backends.SHORT_CONVOLUTION
        own = entry.class_path
    # The indexer's key is not part of a head of the attention itself.
    head_size = sum(layer.vectors[:2]) or layer.head_size
    return LayerRequest(
        name=named.name,
        role=named.role,
        kind=layer.kind,
        layer_class="layer of config.json",
        dtype=named.dtype,
        head_size=head_size,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        has_sink=layer.has_sink,
        own_backend=own,
    )


def _facts(named: NamedLayer, spec: Spec, entry: BackendEntry) -> LayerFacts:
    kernel_block = None
    if not isinstance(spec, MambaSpec):
        kernel_block = largest_kernel_block(
            spec.block_size, entry.kernel_block_sizes, spec.block_size
        )
    vectors = named.layer.vectors
    return LayerFacts(
        named.name,
        named.role,
        kernel_block=kernel_block,
        takes_strides=entry.takes_strides,
        latent_dim=vectors[0] if vectors else None,
        rope_dim=vectors[1] if vectors else None,
    )


def _holding(layer: ModelLayer, spec: Spec) -> Holding:
    if isinstance(spec, MambaSpec):
        return Holding(Span.STATE, 1, extra_blocks=spec.num_speculative_blocks)
    return Holding(Span.WINDOW, layer.window) if layer.window else Holding(Span.ALL)
