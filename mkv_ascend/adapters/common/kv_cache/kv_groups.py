# SPDX-License-Identifier: Apache-2.0
"""Between vLLM's specs and KV groups and the planner (``layout/planning.py``).

vLLM gives every group pages of one size, and splits all groups down to single layers when a
draft's layers do not fit the pattern. Here layers share a block table when they hold the same
tokens; pages may differ (``UniformTypeKVCacheSpecs``), and pools are planned from the layouts.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from mkv_ascend.adapters.common.kv_cache.layer_facts import (
    first_form,
    tied_facts,
    with_block_size,
)
from mkv_ascend.adapters.common.kv_cache.page_shapes import first_spec, page_shape, with_shape
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.layout.component import LayerLayout, LayoutError, PageShape, Storage
from mkv_ascend.layout.grouping import Group, GroupingError
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.page_fitting import Limits
from mkv_ascend.layout.page_planning import LARGEST_PAGE, USUAL_MEMORY
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, plan, recurrent_table
from mkv_ascend.layout.recipes import layout_of, tokens_per_row
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Specs = Mapping[str, Any]

logger = get_logger(__name__)

HARDLY_ANY = 1
"""Bytes of memory for which pages are single blocks, as small as groups make them."""
_MEMORY: ContextVar[int | None] = ContextVar("memory for all caches that are planned", default=None)


@contextlib.contextmanager
def planned_for(memory: int | None) -> Iterator[None]:
    """Plan for so many bytes of all caches in the block; None where they are not known."""
    known = _MEMORY.set(memory)
    try:
        yield
    finally:
        _MEMORY.reset(known)


def has_both_models(specs: Specs) -> bool:
    """Whether both models have layers."""
    return {_role(spec) for spec in specs.values()} == {Role.TARGET, Role.DRAFT}


def specs_by_layer(group: KVCacheGroupSpec) -> dict[str, Any]:
    """The spec of each layer of one group."""
    spec = group.kv_cache_spec
    if isinstance(spec, UniformTypeKVCacheSpecs):
        return {name: spec.kv_cache_specs[name] for name in group.layer_names}
    return dict.fromkeys(group.layer_names, spec)


def shape_of_group(group: KVCacheGroupSpec) -> PageShape:
    """How many blocks of the group a page holds; also on a stage that has no layer of it."""
    return page_shape(first_spec(group))


def layout_of_spec(spec: Any) -> LayerLayout:
    """The layout of a layer from its spec and the facts that are tied to it."""
    facts = tied_facts(spec)
    assert facts is not None
    return layout_of(spec, facts)


def inputs_to_plan(config: VllmConfig, specs: Specs) -> PlanInputs:
    """Inputs of a plan that finds the groups, from the specs that the layers gave."""
    own = {name: _unpadded(first_form(spec)) for name, spec in specs.items()}
    layers = tuple(_cached_layer(config, spec, layout_of_spec(spec)) for spec in own.values())
    inputs = _inputs(config, layers)
    # Their manager takes blocks out of vLLM's own pool, for ever.
    if any(isinstance(spec, SinkFullAttentionSpec) for spec in specs.values()):
        return replace(inputs, shared_pages=False)
    return inputs


def given_inputs(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> PlanInputs:
    """Inputs of the plan of these groups, whose layers have their facts with them.

    Groups of which a worker has no layer are left out.
    """
    specs = [specs_by_layer(group) for group in groups if group.layer_names]
    layers = tuple(
        _cached_layer(config, spec, layout_of_spec(spec))
        for group in specs
        for spec in group.values()
    )
    shaped = [(group, page_shape(next(iter(group.values())))) for group in specs]
    return _given(_inputs(config, layers), shaped)


def inputs_of_layouts(
    config: VllmConfig,
    specs: Sequence[Specs],
    layouts: Mapping[str, LayerLayout],
    aliases: Mapping[str, str],
    shapes: Sequence[PageShape],
) -> PlanInputs:
    """As ``given_inputs``, where the layouts are known otherwise.

    Args:
        specs: by group and layer.
        shapes: blocks in a page, by group.
    """
    layers = tuple(
        _cached_layer(config, spec, layouts[name])
        for group in specs
        for name, spec in group.items()
    )
    kept = [(group, shape) for group, shape in zip(specs, shapes, strict=True) if group]
    given = _given(_inputs(config, layers), kept)
    return replace(given, aliases=tuple(aliases.items()))


def _given(inputs: PlanInputs, groups: Sequence[tuple[Specs, PageShape]]) -> PlanInputs:
    """``inputs`` with the groups of these specs, and what a page holds of each."""
    return replace(
        inputs,
        groups=tuple(tuple(specs) for specs, _ in groups),
        shapes=tuple(shape for _, shape in groups),
    )


def _tokens_hashed_at_a_time(cache: Any) -> int | None:
    """What the user has set for prefix hits; vLLM 0.30 has renamed the option."""
    found: int | None = getattr(cache, "prefix_match_unit", None)
    return found or getattr(cache, "hash_block_size", None)


def _inputs(config: VllmConfig, layers: tuple[CachedLayer, ...]) -> PlanInputs:
    speculative, memory = config.speculative_config, _MEMORY.get()
    drafted = 0 if speculative is None else speculative.num_speculative_tokens
    return PlanInputs(
        layers,
        Request(config.model_config.max_model_len, 1 + drafted),
        _tokens_in_flight(config),
        shared_pages=options_of(config).layout.shared_pages and memory != HARDLY_ANY,
        hash_block_size=_tokens_hashed_at_a_time(config.cache_config),
        memory_bytes=memory,
        kv_transfer=config.kv_transfer_config is not None,
    )


def _tokens_in_flight(config: VllmConfig) -> int:
    """Most tokens that are scheduled while those before them are held.

    Newer versions of vLLM count every batch that is under way, older ones a single batch.
    """
    single = config.scheduler_config.max_num_batched_tokens
    return int(getattr(config, "max_in_flight_tokens", single))


def _cached_layer(config: VllmConfig, spec: Any, layout: LayerLayout) -> CachedLayer:
    table = ""
    if isinstance(spec, MambaSpec):
        # vLLM and vllm-ascend know groups of states by the one spec of all of their layers.
        computed_by = str(getattr(spec.mamba_type, "value", spec.mamba_type))
        if spec.mamba_cache_mode != config.cache_config.mamba_cache_mode:
            computed_by += f" {spec.mamba_cache_mode}"  # of a draft beside states at ends of blocks
        table = recurrent_table(layout, computed_by)
    return CachedLayer(layout, retention_of(config, spec), table=table)


def retention_of(config: VllmConfig, spec: Any) -> Retention:
    """What a request holds, as each spec's ``max_memory_usage_bytes`` counts it."""
    if isinstance(spec, MambaSpec):
        return _recurrent_retention(config, spec)
    rows = tokens_per_row(spec)
    if isinstance(spec, SlidingWindowSpec):
        # Tokens below the window that newer versions of vLLM keep for drafts of several modules.
        below = getattr(spec, "extra_retained_tokens", 0)
        return Retention(RetentionKind.WINDOW, spec.sliding_window + below)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return Retention(RetentionKind.CHUNK, spec.attention_chunk_size)
    if isinstance(spec, CrossAttentionSpec):
        return Retention(
            RetentionKind.ENCODER, config.scheduler_config.max_num_encoder_input_tokens
        )
    return Retention(RetentionKind.ALL, tokens_per_row=rows)


def _recurrent_retention(config: VllmConfig, spec: MambaSpec) -> Retention:
    mode = config.cache_config.mamba_cache_mode
    if mode == "all":
        return Retention(RetentionKind.ALL, extra_blocks=spec.num_speculative_blocks)
    states = 2 + getattr(spec, "num_prefill_checkpoint_blocks", 0) if mode == "align" else 1
    return Retention(
        RetentionKind.STATE,
        states,
        extra_blocks=spec.num_speculative_blocks,
        asked_blocks=asked_beside_states(config),
    )


def asked_beside_states(config: VllmConfig) -> int:
    """Blocks that the manager of a group of states asks for and never takes.

    vllm-ascend's takes a request's own computed tokens for tokens of another engine, and asks for
    one more in each step. Ours, of a draft's states beside prefix caching, asks for what it takes.
    """
    cache = config.cache_config
    ours = cache.enable_prefix_caching and cache.mamba_cache_mode == "none"
    return 0 if ours else 1


def merge_groups(config: VllmConfig, specs: Specs) -> list[KVCacheGroupSpec]:
    """The KV groups of target and draft together, as vLLM takes them.

    Raises:
        GroupingError: no block size is allowed.
    """
    specs = {name: _unpadded(spec) for name, spec in specs.items()}
    grouping = plan(inputs_to_plan(config, specs)).grouping
    groups = [g for g in grouping.groups if g.retention.kind is not RetentionKind.STATE]
    sizes = sorted({group.block_size for group in groups})
    logger.info(
        "KV groups: %s, blocks of %s tokens, prefix hits in multiples of %d",
        grouping.cost,
        " and ".join(map(str, sizes)),
        math.lcm(*(group.retention.tokens_of_block(group.block_size) for group in groups)),
    )
    # Only for methods that shift the draft's input (eagle, eagle3, mtp) is the last block of a
    # prefix hit wrong for the draft; a draft model's own keys are those of its own tokens.
    shifted = config.speculative_config is not None and config.speculative_config.use_eagle()
    return [
        KVCacheGroupSpec(
            list(group.layers),
            UniformTypeKVCacheSpecs(
                block_size=_block_size(group, specs[group.layers[0]]),
                kv_cache_specs={name: _of_group(group, specs[name]) for name in group.layers},
            ),
            is_eagle_group=shifted and group.has_draft,
        )
        for group in grouping.groups
    ]


def better_groups(
    config: VllmConfig, specs: Specs, others: list[KVCacheGroupSpec]
) -> list[KVCacheGroupSpec]:
    """Ours, where the bytes of a request and what groups cost are less than with ``others``.

    The others are vLLM's, and serve wherever ours cannot be planned.
    """
    try:
        ours = merge_groups(config, specs)
    except (GroupingError, LayoutError) as error:
        logger.info("vLLM's KV groups are kept: %s", error)
        return others
    if _price(config, ours) < _price(config, others):
        return ours
    logger.info("vLLM's KV groups are kept: ours cost no less")
    return others


def _price(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> float:
    """As the planner has it, of one of many requests."""
    inputs = given_inputs(config, groups)
    planned = plan(inputs)
    pages = sum(group.page_share(inputs.request) for group in planned.grouping.groups)
    page = planned.plan.bytes_per_block
    limits = Limits(inputs.memory_bytes or USUAL_MEMORY, LARGEST_PAGE)
    return limits.price(pages * page, page, len(groups))


def _of_group(group: Group, spec: Any) -> Any:
    return with_shape(with_block_size(spec, _block_size(group, spec)), group.shape)


def _block_size(group: Group, spec: Any) -> int:
    """The group's block size as its specs count it.

    vLLM 0.30's, which have ``tokens_per_state``, count tokens where a row stands for several.
    """
    in_tokens = hasattr(spec, "tokens_per_state")
    return group.block_size * (group.retention.tokens_per_row if in_tokens else 1)


def _unpadded(spec: Any) -> Any:
    """``spec`` without what vLLM's grouping pads its page by: pools share planes instead.

    Pages of states and of DeepSeek-V4 are shared by their padded size.
    """
    if not getattr(spec, "page_size_padded", None):
        return spec
    layout = layout_of_spec(spec)
    if layout.storage is Storage.PAGED and layout.kind in (Kind.MAMBA, Kind.COMPRESSED_MLA):
        return spec
    bare = copy.copy(spec)
    object.__setattr__(bare, "page_size_padded", None)
    return bare


def _role(spec: Any) -> Role | None:
    facts = tied_facts(spec)
    return None if facts is None else facts.role
