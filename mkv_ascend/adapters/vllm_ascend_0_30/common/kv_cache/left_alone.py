# SPDX-License-Identifier: Apache-2.0
"""Caches that stay in vllm-ascend's own arrangement.

vllm-ascend 0.30.0rc2 arranges the caches of some models and options in ways that other parts of it
count on: families with pools of their own, connectors that read the descriptors of the caches,
offload. Layers of such caches are grouped, counted and allocated by vllm-ascend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm import envs
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MambaSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)
from vllm_ascend.core.kv_cache_interface import (
    AscendMLAAttentionSpec,
    AscendSFAIndexerCacheSpec,
    AscendSlidingWindowMLASpec,
)
from vllm_ascend.utils import is_c8_mxfp_kv_quant

from mkv_ascend.layout.recipes import DEEPSEEK_V4

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PLANNED_SPECS = frozenset(
    {
        FullAttentionSpec,
        SlidingWindowSpec,
        ChunkedLocalAttentionSpec,
        CrossAttentionSpec,
        SinkFullAttentionSpec,
        MambaSpec,
        HiddenStateCacheSpec,
        AscendMLAAttentionSpec,
        AscendSFAIndexerCacheSpec,
    }
)
"""Classes of specs whose layers are planned. A subclass may keep something else."""

HEADS_BEFORE_TOKENS = ("LBHNC", "HND")
"""Values of VLLM_KV_CACHE_LAYOUT with which vllm-ascend's attention reads blocks by head."""


def why_not_planned(config: VllmConfig, specs: Iterable[Any]) -> str | None:
    """What leaves the caches of ``specs`` to vllm-ascend; None where they are planned."""
    if config.kv_transfer_config is not None:
        return "KV transfer is on, and connectors count on vllm-ascend's descriptors of the caches"
    if envs.VLLM_KV_CACHE_LAYOUT in HEADS_BEFORE_TOKENS:
        return f"VLLM_KV_CACHE_LAYOUT is {envs.VLLM_KV_CACHE_LAYOUT}: blocks are stored by head"
    if is_c8_mxfp_kv_quant(config):
        return "keys and values are quantised with scales of their own (C8_MXFP)"
    return _why_not_these(config, specs) or _why_not_this_option(config)


def refuse_drafts_left_alone(config: VllmConfig, specs: Iterable[Any]) -> None:
    """Refuse layers beside DeepSeek-V4's where something leaves the caches to vllm-ascend.

    Its grouping knows DeepSeek-V4's layers by class, and drops others.

    Raises:
        NotImplementedError: what was asked, and what to change.
    """
    specs = list(specs)
    if len(set(map(_is_of_deepseek_v4, specs))) < 2:
        return
    if (reason := why_not_planned(config, specs)) is not None:
        raise NotImplementedError(
            f"a draft model beside DeepSeek-V4, and {reason}: vllm-ascend's own arrangement of "
            "DeepSeek-V4's caches takes no layers of another model. Possible: its own MTP layer "
            "(method mtp), ngram or no speculation, or to leave that option out"
        )


def why_not_planned_groups(config: VllmConfig, specs: Sequence[Mapping[str, Any]]) -> str | None:
    """As ``why_not_planned``; ``specs``: by group and layer."""
    return why_not_planned(config, [spec for group in specs for spec in group.values()])


def _why_not_these(config: VllmConfig, specs: Iterable[Any]) -> str | None:
    for spec in specs:
        if _is_of_deepseek_v4(spec) and _has_draft_model(config):
            continue
        if type(spec) not in PLANNED_SPECS:
            return f"vllm-ascend has an arrangement of its own for a {type(spec).__name__}"
        if version := getattr(spec, "model_version", None):
            return f"vllm-ascend has an arrangement of its own for {version}"
        for form in ("cache_sparse_sfa_turboquant", "cache_sparse_li_c4"):
            if getattr(spec, form, False):
                return f"vllm-ascend has an arrangement of its own for {form}"
    return None


def _has_draft_model(config: VllmConfig) -> bool:
    """Whether a model of its own drafts; vllm-ascend's arrangement of DeepSeek-V4 takes none.

    This worker need not have its layers: other stages of a pipeline decide the same.
    """
    speculative = config.speculative_config
    return speculative is not None and speculative.method == "draft_model"


def _is_of_deepseek_v4(spec: Any) -> bool:
    version = getattr(spec, "model_version", None)
    if type(spec) is AscendSlidingWindowMLASpec:
        return version in (None, DEEPSEEK_V4)  # states of compressors name none
    return type(spec) is AscendMLAAttentionSpec and version == DEEPSEEK_V4


def _why_not_this_option(config: VllmConfig) -> str | None:
    # As given: a worker's parsed options are not those of the engine core's process.
    options = config.additional_config or {}
    if options.get("enable_kvpp"):
        return "enable_kvpp spreads the caches over ranks"
    for section in ("sparse_kv_offload_config", "xlite_graph_config"):
        if (options.get(section) or {}).get("enabled"):
            return f"{section} counts on vllm-ascend's arrangement"
    return None
