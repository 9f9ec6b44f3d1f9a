# SPDX-License-Identifier: Apache-2.0
"""What an engine would plan, from the numbers of two config.json files: no vLLM, no weights.

``commands/from_vllm.py`` finds the same by having vLLM build the models. Tests compare both with
engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.attention.request import Environment
from mkv_ascend.checks import compressed_layers
from mkv_ascend.checks.block_sizes import BlockSizes, takes_asked_size
from mkv_ascend.checks.cached_layers import cached_layers
from mkv_ascend.checks.groups_of_vllm import groups_of_compressed, groups_of_equal_pages
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model_config import ModelConfig
from mkv_ascend.checks.model_layer import NamedLayer, NotFromNumbersError
from mkv_ascend.checks.named_layers import (
    layers_of,
    longest_request,
    method_of,
    models_of,
    tokens_drafted,
)
from mkv_ascend.checks.planning_inputs import Asked, Found
from mkv_ascend.checks.scheduling import is_scheduled_ahead
from mkv_ascend.config import MkvConfig, parse_config
from mkv_ascend.layout.grouping import GroupingOptions
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.planning import CachedLayer, PlanInputs, share_one_table
from mkv_ascend.layout.report_text import count
from mkv_ascend.layout.retention import Request

__all__ = ["ADMITTED_TOKENS", "find"]

ADMITTED_TOKENS = 2048
"""Tokens of a step where the user names none: vLLM's for a server whose device has less than 70
GiB (``EngineArgs.get_batch_defaults``)."""
READ_BY_VLLM: dict[str, Any] = {
    "kv_cache_dtype": "auto",
    "kv_transfer_config": None,
    "ec_transfer_config": None,
    "disable_hybrid_kv_cache_manager": False,
    "disable_sliding_window": False,
    "pipeline_parallel_size": 1,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "hf_overrides": {},
    "model_impl": "auto",
    "mamba_cache_dtype": "auto",
    "mamba_ssm_cache_dtype": "auto",
    "mamba_block_size": None,
    "mamba_cache_mode": "none",
    "num_gpu_blocks_override": None,
}
"""Fields whose effect on caches only vLLM knows, and the values with which they have none."""


def find(asked: Asked, rules: HostRules, environment: Environment | None = None) -> Found:
    """What an engine with these fields would plan on a host with these rules.

    ``environment``: Ascend A2 when left out.

    Raises:
        NotFromNumbersError: only vLLM's classes can tell.
        ExplainError: it cannot be planned at all; SelectionError where no backend fits a layer.
    """
    _refuse_what_vllm_reads(asked)
    options = parse_config(asked.additional)
    target, draft = models_of(asked)
    drafted = tokens_drafted(asked)
    layers = layers_of(asked, target, draft, rules)
    tokens = longest_request(asked, target)
    environment = environment or Environment(DeviceGeneration.A2)
    _refuse_other_sizes(layers, environment)
    _refuse_unplanned(layers, rules)
    takes_hits = _takes_hits(asked, layers, target, rules)
    sizes = _block_sizes(asked, layers, tokens, rules)
    if takes_hits and not _has_states(layers, Role.TARGET):
        sizes = replace(sizes, asked_states=0)  # a draft's, whose blocks have a manager of ours
    cached = cached_layers(
        layers,
        sizes,
        drafted,
        options.attention,
        environment,
        asked.engine.get("attention_backend"),
    )
    groups = _groups(cached, sizes.padded)
    inputs = PlanInputs(
        cached if groups is None else tuple(chain.from_iterable(groups)),
        Request(tokens, 1 + drafted),
        _tokens_in_flight(asked, rules),
        _grouping_options(options, takes_hits),
        None if groups is None else tuple(tuple(x.layout.layer for x in group) for group in groups),
    )
    models = [("target", _described(target, layers, Role.TARGET))]
    if draft is not None:
        models.append(("draft", _described(draft, layers, Role.DRAFT)))
    notes = _other_vocabulary(asked, target, draft)
    return Found(inputs, tuple(models), notes, padded_bytes=sizes.padded)


def _tokens_in_flight(asked: Asked, rules: HostRules) -> int:
    """Most tokens that are scheduled while those before them are held.

    ``VllmConfig.max_in_flight_tokens`` of vLLM 0.30.0: two batches, if a step is scheduled while
    the one before it runs, and the model is not spread over a pipeline.
    """
    tokens = asked.number("max_num_batched_tokens", ADMITTED_TOKENS)
    given, options = asked.engine.get("async_scheduling"), asked.speculative or {}
    ahead = is_scheduled_ahead(given, options.get("method"), options, rules)
    return tokens * 2 if rules.counts_batches_in_flight and ahead else tokens


def _refuse_what_vllm_reads(asked: Asked) -> None:
    for name, harmless in READ_BY_VLLM.items():
        value = asked.engine.get(name)
        if value is not None and value != harmless:
            raise NotFromNumbersError(f"{name} is {value!r}, which only vLLM can read")
    if parse_config(asked.additional).kv_cache.draft_dtype is not None:
        raise NotFromNumbersError("kv_cache.draft_dtype is given, which only vLLM can read")
    if (asked.speculative or {}).get("kv_cache_dtype") not in (None, "auto"):
        raise NotFromNumbersError(
            "kv_cache_dtype of --speculative-config is given, which only vLLM can read"
        )


def _refuse_other_sizes(layers: Sequence[NamedLayer], environment: Environment) -> None:
    """Caches of DeepSeek-V4 have other dtypes and pages on A5."""
    generation = environment.device_generation
    if generation is DeviceGeneration.A5 and any(named.layer.compressed for named in layers):
        raise NotFromNumbersError(f"sizes of DeepSeek-V4's caches on {generation} are not known")


def _refuse_unplanned(layers: Sequence[NamedLayer], rules: HostRules) -> None:
    """Caches that vllm-ascend arranges itself, counted by no plan."""
    if all(named.layer.compressed for named in layers) and not rules.plans_compressed:
        raise NotFromNumbersError(
            f"{host_versions.vllm_ascend()} groups and arranges the caches of DeepSeek-V4 itself"
        )


def _grouping_options(options: MkvConfig, takes_hits: bool) -> GroupingOptions:
    layout = options.layout
    return GroupingOptions(
        layout.objective,
        layout.max_padding_fraction,
        max_block_size=layout.max_block_size,
        prefix_caching=takes_hits,
    )


def _takes_hits(
    asked: Asked, layers: Sequence[NamedLayer], target: ModelConfig, rules: HostRules
) -> bool:
    """Whether vLLM looks for prefix hits.

    Not beside states of a draft that cannot read a hit itself (``about_draft``).
    """
    if _has_states(layers, Role.TARGET):
        return _hits_beside_states(asked, rules)
    draft = [named.layer for named in layers if named.role is Role.DRAFT]
    if any(layer.states for layer in draft):
        unread = any(layer.window for layer in draft)
        unread |= target.is_multimodal and not asked.engine.get("language_model_only")
        if unread or asked.number("data_parallel_size", 1) > 1:
            return False
    return asked.engine.get("enable_prefix_caching") is not False


def _has_states(layers: Sequence[NamedLayer], role: Role) -> bool:
    return any(named.layer.states for named in layers if named.role is role)


def _hits_beside_states(asked: Asked, rules: HostRules) -> bool:
    """Whether vLLM looks for prefix hits beside states of the target, asked or by itself."""
    given = asked.engine.get("enable_prefix_caching")
    return rules.hits_beside_states if given is None else bool(given)


def _block_sizes(
    asked: Asked, layers: Sequence[NamedLayer], tokens: int, rules: HostRules
) -> BlockSizes:
    target = [named.layer for named in layers if named.role is Role.TARGET]
    beside_states = len({bool(layer.states) for layer in target}) == 2
    compressed = any(layer.compressed is not None for layer in target)
    taken = compressed or takes_asked_size(asked.engine, beside_states)
    given = asked.engine.get("block_size") if taken else None
    if compressed and given not in compressed_layers.BLOCKS:
        given = compressed_layers.DEFAULT_BLOCK
    sizes = BlockSizes.of_layers(layers, given, tokens, rules.equal_pages)
    if not _has_states(layers, Role.TARGET) or not _hits_beside_states(asked, rules):
        return sizes
    if not rules.hits_beside_states:
        raise NotFromNumbersError(
            "with prefix caching vLLM chooses which states are kept", kept_block=sizes.attention
        )
    return sizes.with_hits_beside_states()


def _groups(
    layers: Sequence[CachedLayer], padded: int | None
) -> list[Sequence[CachedLayer]] | None:
    """vLLM's groups where an engine takes them; None where it searches for groups of its own.

    Raises NotFromNumbersError where vLLM fails to group layers of DeepSeek-V4.
    """
    if share_one_table(layers):
        return [layers]
    if all(layer.layout.kind is Kind.COMPRESSED_MLA for layer in layers):
        found = groups_of_compressed(layers)
        if found is None:
            raise NotFromNumbersError("vllm-ascend has no groups for these layers of DeepSeek-V4")
        return found
    if any(layer.layout.role is Role.DRAFT for layer in layers):
        return None
    return groups_of_equal_pages(layers, padded)


def _other_vocabulary(
    asked: Asked, target: ModelConfig, draft: ModelConfig | None
) -> tuple[str, ...]:
    """What vLLM refuses of a draft model, and what no cache depends on."""
    if draft is None or method_of(asked) != "draft_model":
        return ()
    sizes: list[Any] = [model.get("vocab_size") for model in (target, draft)]
    if None in sizes or sizes[0] == sizes[1]:
        return ()
    return (f"vLLM refuses this draft: its vocabulary has {sizes[1]} tokens, not {sizes[0]}",)


def _described(model: ModelConfig, layers: Sequence[NamedLayer], role: Role) -> str:
    number = count(sum(named.role is role for named in layers), "layer")
    dtype = next(named.dtype for named in layers)
    return f"{model.folder.resolve().name} ({model.model_type}, {number}, {dtype})"
