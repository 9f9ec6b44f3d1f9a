# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: vllm-ascend's model runner, with separate choices for target and draft."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.compilation.counter import compilation_counter
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.parallel_state import is_global_first_rank
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.drafting.capture_cost import CaptureCost
from mkv_ascend.adapters.common.drafting.proposers import assembly_of, create_proposer
from mkv_ascend.adapters.common.kv_cache.block_zeroer import PlannedBlockZeroer
from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.common.kv_cache.planned_caches import (
    cached_specs,
    kernel_blocks_of,
    plan_caches,
    served_plan,
)
from mkv_ascend.adapters.common.patches import accepted_tokens, mamba_kernels
from mkv_ascend.adapters.common.rebuilding_states import (
    Rebuilding,
    make_rebuilding,
    note_requests,
)
from mkv_ascend.adapters.common.runner import HostRunner
from mkv_ascend.adapters.common.target_graphs import (
    for_updates,
    state_of,
    take_lengths_on_the_host,
)
from mkv_ascend.adapters.common.target_pass import (
    AttentionGroups,
    TargetPass,
    plan_target_pass,
)
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import override, replaced
from mkv_ascend.adapters.vllm_ascend_0_23 import runner_records as records
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.kv_transfer import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.mla_specs import corrected_specs
from mkv_ascend.adapters.vllm_ascend_0_23.patches.gdn_rows import (
    in_prompts,
    mark_builders,
    verifying_rows,
)
from mkv_ascend.adapters.vllm_ascend_0_23.target_slots import slots_in_one_launch
from mkv_ascend.attention.report import render
from mkv_ascend.layout.bound import BoundPlan
from mkv_ascend.layout.materialize import Materialized, materialize

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = get_logger(__name__)

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""


class MkvModelRunner(HostRunner):
    """Runs the target and, where there is one, the draft.

    ``cache_plan``: the plan of all KV caches; None before they are allocated, and where
    vllm-ascend allocates them.
    """

    cache_plan: BoundPlan | None = None
    attn_groups: AttentionGroups
    attn_state: AscendAttentionState
    _target_pass: TargetPass | None = None
    _rebuilding: Rebuilding | None = None
    _cache_memory: Materialized

    @override(records.DRAFTER)
    def _get_drafter(self) -> Any:
        method = self.speculative_config.method
        return create_proposer(method, self.vllm_config, self.device, self, HOST)

    @override(records.MAMBA_KERNEL)
    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches, then log the tables of layers and of the plan once."""
        super().initialize_kv_cache(kv_cache_config)
        mamba_kernels.prepare(self.vllm_config, self.kv_cache_config)
        builders = [
            builder
            for groups in self.attn_groups
            for group in groups
            for builder in group.metadata_builders
        ]
        mark_builders(builders)
        if self.compilation_config.cudagraph_mode.has_full_cudagraphs():
            take_lengths_on_the_host(builders)
        self._plan_the_targets_pass()
        self._rebuilding = make_rebuilding(self.drafter, self.cache_config, self.scheduler_config)
        if not is_global_first_rank():
            return
        logger.info("%s", render(self.layer_rows()))
        if (assembly := assembly_of(self.drafter)) is not None:
            logger.info("%s", assembly.describe())
        if self._rebuilding is not None:
            logger.info("%s", self._rebuilding.describe())
        if self.cache_plan is not None:
            specs = cached_specs(self.kv_cache_config, self.runner_only_attn_layers)
            backends = {row.name: row.backend for row in self.layer_rows()}
            served = served_plan(
                self.cache_plan, self.kv_cache_config, specs, self.vllm_config, backends
            )
            logger.info("%s", served)

    @override(records.CAPTURE_COSTS)
    def capture_model(self) -> int:
        """Capture graphs of target and draft, and log the cost of each; returns bytes."""
        before, start = compilation_counter.num_cudagraph_captured, time.perf_counter()
        kept_bytes: int = super().capture_model()
        graphs = compilation_counter.num_cudagraph_captured - before
        target = CaptureCost(graphs, time.perf_counter() - start, kept_bytes)
        assembly = assembly_of(self.drafter)
        draft = CaptureCost() if assembly is None else assembly.capturer.cost.total
        target = target.without(replace(draft, graphs=0))  # vLLM counts its own graphs
        if graphs and is_global_first_rank():
            logger.info("Graphs captured: of the target %s; of the draft %s.", target, draft)
        return kept_bytes

    @override(records.BOUND_CACHES)
    def initialize_kv_cache_tensors(self, kv_cache_config: KVCacheConfig) -> dict[str, Any]:
        """Bind plain caches to vLLM's own layers.

        Beside a DeepSeek-V4 target, vllm-ascend binds the draft's caches in a list, as that
        target's layers take them. vLLM's own layers take the caches themselves.
        """
        caches: dict[str, Any] = super().initialize_kv_cache_tensors(kv_cache_config)
        for name, cache in caches.items():
            layer = self.compilation_config.static_forward_context[name]
            if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
                layer.kv_cache = cache
        return caches

    def _plan_the_targets_pass(self) -> None:
        """Limit slots and metadata of the target's pass to its own layers, made once.

        This must follow the allocation of caches, because vllm-ascend finds kernel block sizes
        and caches through the attention groups of all layers.
        """
        drafts_apart = assembly_of(self.drafter) is not None or not self._draft_layers()
        tables = self.input_batch.block_table
        self._target_pass = None
        if (
            not drafts_apart  # the drafter reads slots and metadata of the target's pass
            or self.use_cp or self.use_compress  # tables hold shares of a sequence, or no tokens
            or len(tables.block_tables) != len(self.attn_groups)  # layers without a cache
        ):  # fmt: skip
            return
        self._target_pass = plan_target_pass(
            self.kv_cache_config,
            self.attn_groups,
            tables.block_tables,
            self._draft_layers(),
            HOST.sharing_of,
            share=not self.enable_hamming_sparse,  # whose metadata differs by group
        )
        slots_in_one_launch(tables, self.attn_groups, self._draft_layers(), self.max_num_reqs)

    @override(records.PREFIX_HITS)
    def _update_states(self, scheduler_output: Any) -> Any:
        """As vllm-ascend's; also notes requests that begin behind computed tokens."""
        if self._rebuilding is not None:
            note_requests(self._rebuilding.lost, scheduler_output)
        return super()._update_states(scheduler_output)

    @override(records.PREFIX_HITS)
    def propose_draft_token_ids(
        self, token_ids: Any, sampling: Any, scheduled: Any, spec: Any, common: Any, *args: Any
    ) -> Any:
        """As vllm-ascend's, after the draft has rebuilt its states behind prefix hits."""
        if self._rebuilding is not None:
            self._rebuilding.run(self.input_batch, common)
        return super().propose_draft_token_ids(token_ids, sampling, scheduled, spec, common, *args)

    @override(records.TARGET_METADATA)
    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Metadata of the target's own layers, built once per distinct need."""
        if self.speculative_config is None:
            return self._build_of_target(*args, **kwargs)
        with accepted_tokens.with_accepted_tokens(self.attn_groups, self.num_accepted_tokens.gpu):
            return self._build_of_target(*args, **kwargs)

    def _build_of_target(self, *args: Any, **kwargs: Any) -> Any:
        self.attn_state = state_of(self.attn_state, kwargs["max_query_len"])
        plan, batch = self._target_pass, self.input_batch
        self._find_verifying_rows(kwargs)
        if plan is None or kwargs.get("ubatch_slices") is not None:
            return super()._build_attention_metadata(*args, **kwargs)
        whole = self.kv_cache_config, self.attn_groups, batch.block_table
        self.kv_cache_config, self.attn_groups = plan.config, plan.attention_groups
        batch.block_table = plan.tables
        try:
            metadata, common = super()._build_attention_metadata(*args, **kwargs)
        finally:
            self.kv_cache_config, self.attn_groups, batch.block_table = whole
        requests = kwargs["num_reqs"]
        lengths = self.seq_lens[: kwargs.get("num_reqs_padded") or requests]
        return plan.complete(metadata, requests, lengths), common

    @override(records.CHUNKS_OF_PROMPTS)
    def _determine_batch_execution_and_padding(
        self,
        num_tokens: int,
        num_reqs: int,
        *args: Any,
        force_uniform_decode: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As vllm-ascend's, but no chunk of a prompt runs in a graph of verify steps.

        This concerns models with recurrent layers. vllm-ascend judges by shape, and a chunk of
        K + 1 tokens looks like a verify step.
        """
        batch, model = self.input_batch, self.model_config
        if force_uniform_decode is None and (model.is_hybrid or model.is_attention_free):
            computed = batch.num_computed_tokens_cpu[:num_reqs]
            if in_prompts(computed, batch.num_prompt_tokens[:num_reqs]).any():
                force_uniform_decode = False
        return super()._determine_batch_execution_and_padding(
            num_tokens, num_reqs, *args, force_uniform_decode=force_uniform_decode, **kwargs
        )

    def _find_verifying_rows(self, asked: dict[str, Any]) -> None:
        """Name the rows that verified drafts but have none now to builders of recurrent layers.

        vllm-ascend names only rows with drafts. ``asked``: arguments of
        ``_build_attention_metadata``; changed if there are more rows.
        """
        if not (self.speculative_config and self.model_config.is_hybrid):
            return
        if asked.get("for_cudagraph_capture") or asked.get("num_scheduled_tokens") is None:
            return
        count, batch = asked["num_reqs"], self.input_batch
        drafts = self.num_decode_draft_tokens.np[:count]
        if not asked.get("use_spec_decode"):
            self.num_decode_draft_tokens.np.fill(-1)
        accepted = self.num_accepted_tokens.np[:count]
        computed, prompts = batch.num_computed_tokens_cpu[:count], batch.num_prompt_tokens[:count]
        found = verifying_rows(np.maximum(drafts, 0), accepted, computed, prompts)
        drafts[:] = np.maximum(drafts, found)
        asked["use_spec_decode"] = bool((drafts >= 0).any())

    @override(records.VERIFY_STEPS)
    def _update_full_graph_params_if_needed(self, *args: Any, **kwargs: Any) -> None:
        """Update the launches of a replayed graph for K + 1 tokens per request."""
        with replaced(self, "speculative_config", for_updates(self.speculative_config)):
            super()._update_full_graph_params_if_needed(*args, **kwargs)

    @override(records.SPECS)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        all_layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        specs = corrected_specs(
            super().get_kv_cache_spec(),
            all_layers,
            self.vllm_config,
            self.sfa_dcp_replicated_indexer_size,
        )
        tie_facts(specs, all_layers, self._draft_layers())
        return specs

    @override(records.SHARING_LAYERS)
    def maybe_add_kv_sharing_layers_to_kv_cache_groups(
        self, kv_cache_config: KVCacheConfig
    ) -> None:
        """Let layers that read another layer's cache join its group, with its spec."""
        super().maybe_add_kv_sharing_layers_to_kv_cache_groups(kv_cache_config)
        for group in kv_cache_config.kv_cache_groups:
            if isinstance(group.kv_cache_spec, UniformTypeKVCacheSpecs):
                specs = group.kv_cache_spec.kv_cache_specs
                for name in group.layer_names:
                    if name not in specs:
                        specs[name] = specs[self.shared_kv_cache_layers[name]]

    @override(records.PLANNED_CACHES)
    def _allocate_kv_cache_tensors(self, kv_cache_config: KVCacheConfig) -> dict[str, Any]:
        """Every layer's cache in its final shape, from one plan, if all kinds are planned."""
        specs = cached_specs(kv_cache_config, self.runner_only_attn_layers)
        reason = why_not_planned(self.vllm_config, specs)
        self.cache_plan = None
        if reason is not None:
            logger.warning("KV caches are allocated by vllm-ascend, not planned: %s", reason)
            raw: dict[str, Any] = super()._allocate_kv_cache_tensors(kv_cache_config)
            return raw
        self.cache_plan = plan_caches(
            self.vllm_config,
            kv_cache_config,
            specs,
            get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase),
            self._draft_layers(),
            kernel_blocks_of(kv_cache_config, self.kernel_block_sizes),
            self.shared_kv_cache_layers,
        )
        self.hybrid_with_attn_and_mamba = False
        self._cache_memory = materialize(self.cache_plan, self.device)
        return self._cache_memory.caches

    @override(records.PLANNED_SHAPES)
    def _reshape_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, kv_cache_raw_tensors: dict[str, Any]
    ) -> dict[str, Any]:
        """As vllm-ascend's; planned caches need no reshaping."""
        if self.cache_plan is not None:
            return kv_cache_raw_tensors
        reshaped: dict[str, Any] = super()._reshape_kv_cache_tensors(
            kv_cache_config, kv_cache_raw_tensors
        )
        return reshaped

    @override(records.ZEROING)
    def _init_kv_zero_meta(self) -> None:
        """Let the scheduler zero blocks in all planned caches."""
        if self.cache_plan is None:
            super()._init_kv_zero_meta()
            return
        self._kv_block_zeroer = PlannedBlockZeroer(self._cache_memory.planes)
