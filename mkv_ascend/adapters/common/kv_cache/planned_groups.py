# SPDX-License-Identifier: Apache-2.0
"""KV groups on their way through the engine core: first with every layer's facts, then without.

vLLM's groups have one spec for all of their layers if these have equal specs. Between grouping and
the configuration of the workers, each layer keeps its own spec here (``UniformTypeKVCacheSpecs``).
The worker tied to it the facts that planning needs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import (
    HiddenStateCacheSpec,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowMLASpec,
    UniformTypeKVCacheSpecs,
)

from mkv_ascend.adapters.common.kv_cache import kv_groups
from mkv_ascend.adapters.common.kv_cache.layer_facts import first_form, tie, tied_facts
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.layout.planning import PlanInputs
from mkv_ascend.layout.recipes import LayerFacts

if TYPE_CHECKING:
    from vllm.config import VllmConfig

Groups = Sequence[KVCacheGroupSpec]
Specs = Mapping[str, Any]


def require_layouts(specs: Specs) -> None:
    """Refuse layers that cannot be planned, before anything is grouped.

    Raises:
        LayoutError: a spec of a class without a recipe, or one that does not add up.
        NotImplementedError: a form of cache that no backend of vllm-ascend serves.
    """
    for spec in specs.values():
        kv_groups.layout_of_spec(spec)


def need_ours(config: VllmConfig, specs: Specs) -> bool:
    """Whether we group these layers, not vLLM.

    We do so for layers of target and draft together, and for layers that vLLM refuses. vLLM groups
    models whose layers are all DeepSeek-V4's, their mtp drafts included. It knows those layers by
    class, and accepts nothing beside them, not even a draft with MLA.
    """
    if not _need_several_groups(config, specs):
        return False
    specs = {name: first_form(spec) for name, spec in specs.items()}
    if any(isinstance(spec, SlidingWindowMLASpec) for spec in specs.values()):
        return not all(map(_is_of_deepseek_v4, specs.values()))
    return kv_groups.has_both_models(specs) or not _vllm_can_unify(specs)


def may_be_ours(config: VllmConfig, specs: Specs) -> bool:
    """Whether layers that vLLM can group are ours where that holds less, as the option asks.

    KV connectors count one number of blocks for all layers, and DeepSeek-V4's layers are vLLM's.
    """
    return (
        options_of(config).layout.without_draft
        and config.kv_transfer_config is None
        and not any(map(_is_of_deepseek_v4, specs.values()))
        and _need_several_groups(config, specs)
    )


def _need_several_groups(config: VllmConfig, specs: Specs) -> bool:
    # A model of encoders alone keeps nothing.
    if not specs or config.scheduler_config.disable_hybrid_kv_cache_manager:
        return False
    first = {name: first_form(spec) for name, spec in specs.items()}
    return not UniformTypeKVCacheSpecs.is_uniform_type(first)


def inputs_of(config: VllmConfig, specs: Specs, groups: Groups) -> PlanInputs:
    """The inputs of the engine's plan; ``groups`` are its groups for ``specs``."""
    if need_ours(config, specs):
        return kv_groups.inputs_to_plan(config, specs)
    return kv_groups.given_inputs(config, groups)


def _vllm_can_unify(specs: Specs) -> bool:
    """Whether ``unify_kv_cache_spec_page_size`` works: it enlarges blocks, but not of states."""
    kept = [spec for spec in specs.values() if not isinstance(spec, HiddenStateCacheSpec)]
    largest = max((spec.page_size_bytes for spec in kept), default=0)
    return all(
        spec.page_size_bytes == largest
        or (largest % spec.page_size_bytes == 0 and not isinstance(spec, MambaSpec))
        for spec in kept
    )


def with_facts(groups: Groups, facts: Mapping[str, LayerFacts | None]) -> list[KVCacheGroupSpec]:
    """vLLM's groups, with a spec and facts for each layer."""
    result = []
    for group in groups:
        specs = {name: copy.copy(spec) for name, spec in kv_groups.specs_by_layer(group).items()}
        for name, spec in specs.items():
            tie(spec, facts[name])
        whole = UniformTypeKVCacheSpecs(group.kv_cache_spec.block_size, specs)
        result.append(KVCacheGroupSpec(group.layer_names, whole, group.is_eagle_group))
    return result


def are_planned(groups: Groups) -> bool:
    """Whether these groups, or a worker's part of them, are planned layer by layer."""
    return bool(groups) and all(
        isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs)
        and all(
            tied_facts(spec) is not None for spec in group.kv_cache_spec.kv_cache_specs.values()
        )
        for group in groups
    )


def as_vllm_has_them(groups: Groups) -> list[KVCacheGroupSpec]:
    """Groups with one spec where the specs of all their layers are equal.

    Block tables, the input batch and the scheduler recognise groups of states by that spec's class.
    """
    return [
        KVCacheGroupSpec(group.layer_names, _one_spec(group.kv_cache_spec), group.is_eagle_group)
        for group in groups
    ]


def _one_spec(whole: Any) -> Any:
    specs = list(whole.kv_cache_specs.values())
    if _is_of_deepseek_v4(specs[0]) or any(spec != specs[0] for spec in specs):
        return whole
    return specs[0]


def _is_of_deepseek_v4(spec: Any) -> bool:
    """Whether the spec is DeepSeek-V4's; its groups never have one spec.

    Block tables look for compression where a group has several specs
    (vllm_ascend/worker/block_table.py).
    """
    return isinstance(spec, SlidingWindowMLASpec) or bool(getattr(spec, "model_version", None))
