# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: vllm-ascend's model runner V1 with our choices and drafts, on every host.

What a host does in its own way, ``HOST`` tells (``runner_host.py``).
"""

from __future__ import annotations

import functools
import itertools
import sys
from typing import TYPE_CHECKING, Any

# First: whatever module of vllm-ascend's attention comes before it ends in a circle of imports.
import vllm_ascend.ops  # noqa: F401
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.adapters.common import giving_up, graphs, pipeline, weights
from mkv_ascend.adapters.common import runner_host as records
from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.batch_rows import (
    ACCEPTED,
    SkippedRequests,
    StatesOfEarlierStage,
    cover_padding,
    cover_rows,
    name_rows,
)
from mkv_ascend.adapters.common.drafting.proposers import assembly_of, create_proposer
from mkv_ascend.adapters.common.drafting.records import PROPOSALS
from mkv_ascend.adapters.common.graphs import (
    VERIFY_STEPS,
    attends,
    for_updates,
    have_readers,
    state_of,
    take_lengths_on_the_host,
)
from mkv_ascend.adapters.common.kv_cache.block_zeroer import PlannedBlockZeroer, prepare_blocks
from mkv_ascend.adapters.common.kv_cache.page_shapes import planes_of_groups
from mkv_ascend.adapters.common.kv_cache.planned_caches import (
    cached_specs,
    give_readers_specs,
    kernel_blocks_of,
    plan_caches,
    served_plan,
)
from mkv_ascend.adapters.common.patches import auxiliary_states, experts, recurrent, sampled_rows
from mkv_ascend.adapters.common.patches.attention import drop_rows_of_other_sizes
from mkv_ascend.adapters.common.rebuilding_states import (
    Rebuilding,
    make_rebuilding,
    note_requests,
    tokens_on_the_host,
)
from mkv_ascend.adapters.common.request_limits import mark_tokens
from mkv_ascend.adapters.common.start_up import Served
from mkv_ascend.adapters.common.target_pass import AttentionGroups, TargetPass, plan_target_pass
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import override, replaced
from mkv_ascend.adapters.platform_slot import OURS
from mkv_ascend.attention.report import LayerRow
from mkv_ascend.layout.materialize import Materialized, materialize
from mkv_ascend.layout.plan import BoundPlan

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm_ascend.attention.attention_v1 import AscendAttentionState

logger = get_logger(__name__)

HOST = adapter().runner_host()
"""What the installed host does in its own way."""
HOST_LENGTH_BUILDERS = (AscendAttentionMetadataBuilder, AscendMLAMetadataBuilder)
"""Builders that read sequence lengths on the host."""


class MkvModelRunner(NPUModelRunner):
    """Runs the target and, where there is one, the draft.

    Attributes:
        cache_plan: the plan of all KV caches; None before they are allocated, and where vllm-ascend
            allocates them.
    """

    cache_plan: BoundPlan | None = None
    kv_cache_config: KVCacheConfig
    attn_groups: AttentionGroups
    attn_state: AscendAttentionState
    _target_pass: TargetPass | None = None
    _rebuilding: Rebuilding | None = None
    _layers_before: graphs.LayersAsTheyWere | None = None
    _cache_memory: Materialized

    @override(OURS)
    def load_model(self) -> None:
        """Load target and draft; afterwards every layer has its backend.

        Raises:
            SelectionError: no backend fits a layer, or a pattern of ``attention.layers``
                matches none.
        """
        experts.make_for_draft(self.vllm_config)
        with auxiliary_states.with_auxiliary_states(self):
            super().load_model()
        auxiliary_states.make_room_for_mtp(self.get_model())
        pipeline.share_embeddings(self, getattr(self, "drafter", None))
        weights.refuse(self.vllm_config, getattr(self, "drafter", None))
        weights.warn(self, getattr(self, "drafter", None))
        drop_rows_of_other_sizes()
        layers.check_options(self.vllm_config)
        # vllm-ascend asks only the target's backend. The lengths on the host must be exact if any
        # layer's builder reads them, even a layer of the draft.
        self._needs_seq_lens_cpu_sync = self.use_compress or any(
            issubclass(layer.get_attn_backend().get_builder_cls(), HOST_LENGTH_BUILDERS)
            for layer in layers.chosen_layers(self.vllm_config).values()
        )
        if assembly_of(getattr(self, "drafter", None)) is not None:
            # Ours leave out what lies beyond the longest context, request by request. 0.30.0rc2
            # skips the proposal of all where one is near it: the draft's cache misses a step.
            self.effective_drafter_max_model_len = sys.maxsize
        if HOST.loaded is not None:
            HOST.loaded(self.vllm_config, self.device)

    def draft_layers(self) -> frozenset[str]:
        """Names of the draft's layers."""
        return frozenset(getattr(self.drafter, "_draft_attn_layer_names", ()))

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Each layer with its backend and its KV group, in the order of creation."""
        return layers.rows_of_layers(self.vllm_config, self.draft_layers(), self.kv_cache_config)

    def zero_new_blocks(self) -> None:
        """Zero and copy blocks from now on, where some may have held states: on every stage."""
        needed = self.cache_plan is not None and self.kv_cache_config.needs_kv_cache_zeroing
        if needed and not hasattr(self, "_kv_block_zeroer"):
            self._init_kv_zero_meta()

    @override(PROPOSALS)
    def _get_drafter(self) -> Any:
        method = self.speculative_config.method
        return create_proposer(method, self.vllm_config, self.device, self, HOST.drafts)

    @override(records.PLANNED_CACHES)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        return HOST.planned_specs(self, super().get_kv_cache_spec)

    @override(graphs.GRAPH_MEMORY)
    def profile_cudagraph_memory(self) -> int:
        """As vLLM's, with vllm-ascend's graphs, and with KV groups as the engine core has them."""
        register_all_kvcache_specs(self.vllm_config)
        layers = self.compilation_config.static_forward_context.values()
        self._layers_before = graphs.LayersAsTheyWere(layers)
        with self._layers_before.measured_apart(), graphs.captures_of_runner_v1(self):
            return int(super().profile_cudagraph_memory())

    @override(graphs.GRAPH_MEMORY)
    def _cleanup_profiling_kv_cache(self) -> None:
        """As vLLM's, which does not know what holds planned caches and the draft's graphs."""
        for name in ("_cache_memory", "_kv_block_zeroer"):
            self.__dict__.pop(name, None)
        self._target_pass = self._rebuilding = None
        if (assembly := assembly_of(getattr(self, "drafter", None))) is not None:
            assembly.forget_graphs()
        drop = super()._cleanup_profiling_kv_cache
        if self._layers_before is None:
            drop()  # at the engine's end
            return
        before, self._layers_before = self._layers_before, None
        before.note_caches()
        before.drop_caches(drop)

    @override(OURS)
    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        """Allocate the caches, and make what reads them."""
        kwargs.pop("is_profiling", None)  # of vLLM's method, which vllm-ascend's does not have
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        recurrent.prepare(self.vllm_config, self.kv_cache_config)
        groups = itertools.chain.from_iterable(self.attn_groups)
        builders = [builder for group in groups for builder in group.metadata_builders]
        recurrent.mark_builders(builders)
        if self.compilation_config.cudagraph_mode.has_full_cudagraphs():
            take_lengths_on_the_host(builders)
        pipeline.keep_inputs(self)
        self._target_pass = None
        HOST.limit_the_targets_pass(self)
        self._rebuilding = make_rebuilding(self.drafter, self.cache_config, self.scheduler_config)
        self.zero_new_blocks()

    def served(self) -> Served:
        """What this runner serves, once its caches are there."""
        rows, text = self.layer_rows(), None
        if self.cache_plan is not None:
            specs = cached_specs(self.kv_cache_config, self.runner_only_attn_layers)
            backends = {row.name: row.backend for row in rows}
            config = self.vllm_config
            text = served_plan(self.cache_plan, self.kv_cache_config, specs, config, backends)
        return Served(rows, assembly_of(self.drafter), self._rebuilding, self.cache_plan, text)

    def limit_the_targets_pass(self, tables_hold_shares: bool, share: bool = True) -> bool:
        """Limit the metadata of the target's pass to its own layers; returns whether it is.

        This must follow the allocation of caches, because vllm-ascend finds kernel block sizes
        and caches through the attention groups of all layers.

        Args:
            tables_hold_shares: each rank's block tables hold a share of a sequence.
            share: groups that differ by nothing but their block table share metadata.
        """
        # ``attn_layer_names``: also of a drafter that keeps hidden states and proposes nothing.
        has_layers = self.draft_layers() or bool(getattr(self.drafter, "attn_layer_names", ()))
        tables = self.input_batch.block_table
        if (
            (has_layers and assembly_of(self.drafter) is None)  # it reads the target's metadata
            or tables_hold_shares or self.use_compress  # whose tables hold no tokens
            or len(tables.block_tables) != len(self.attn_groups)  # layers without a cache
        ):  # fmt: skip
            return False
        self._target_pass = plan_target_pass(
            self.kv_cache_config,
            self.attn_groups,
            tables.block_tables,
            self.draft_layers(),
            HOST.drafts.backend_of,
            share=share,
        )
        return self._target_pass is not None

    @functools.cached_property
    def _accepted(self) -> SkippedRequests | StatesOfEarlierStage:
        """What was accepted of requests whose rows do not say so."""
        earlier = pipeline.is_first_stage(self.vllm_config)
        return StatesOfEarlierStage() if earlier else SkippedRequests()

    @override(pipeline.DRAFTS_WITH_OUTPUT)
    def sample_tokens(self, grammar_output: Any) -> Any:
        """As vllm-ascend's; of a pipeline's last stage with the step's draft tokens."""
        return pipeline.with_drafts(self, super().sample_tokens(grammar_output))

    @override(records.PLANNED_CACHES)
    @override(ACCEPTED)
    @override(pipeline.DRAFTS_WITH_OUTPUT)
    @override(recurrent.groups_that_move.record)
    def _update_states(self, scheduler_output: Any) -> Any:
        """As vllm-ascend's; also notes requests that begin behind computed tokens, or sit out,
        tokens that a first stage is not told, and positions that hold tokens."""
        giving_up.obey(assembly_of(self.drafter), scheduler_output)
        scheduler_output = prepare_blocks(self, "_kv_block_zeroer", scheduler_output)
        self._accepted.note(self, scheduler_output)
        if pipeline.is_first_stage(self.vllm_config):
            pipeline.catch_up(self, scheduler_output)
        if self._rebuilding is not None:
            note_requests(self._rebuilding.lost, scheduler_output)
        corrected = super()._update_states(scheduler_output)
        mark_tokens(self, scheduler_output)
        return corrected

    @override(ACCEPTED)
    def _sync_num_accepted_tokens(self, *args: Any, **kwargs: Any) -> None:
        """Numbers of accepted tokens in the order of rows, of requests that sat out, too."""
        super()._sync_num_accepted_tokens(*args, **kwargs)
        self._accepted.restore(self)

    @override(sampled_rows.swap_both_masks.record)
    def _sample(self, logits: Any, spec_decode_metadata: Any) -> Any:
        """As vllm-ascend's; a row of a verify step counts the tokens and the drafts before it."""
        if spec_decode_metadata is not None:
            sampled_rows.name_drafts(self)
            sampled_rows.penalise_each_row(self)
        if self.num_spec_tokens:
            sampled_rows.hold_back_stop_tokens(self, spec_decode_metadata)
        return super()._sample(logits, spec_decode_metadata)

    @override(recurrent.groups_that_move.record)
    def propose_draft_token_ids(
        self, token_ids: Any, sampling: Any, scheduled: Any, spec: Any, common: Any, *args: Any
    ) -> Any:
        """As vllm-ascend's, after the draft has rebuilt its states behind prefix hits."""
        if self._rebuilding is not None and not self.drafter.assembly.given_up:
            batch = self.input_batch
            tokens = tokens_on_the_host(batch.req_id_to_index, batch.token_ids_cpu, self.device)
            self._rebuilding.run(tokens, common)
        return super().propose_draft_token_ids(token_ids, sampling, scheduled, spec, common, *args)

    @override(records.TARGET_METADATA)
    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Metadata of the target's own layers, built once per distinct need."""
        if self.speculative_config is None:
            return self._build_of_target(*args, **kwargs)
        with recurrent.with_accepted_tokens(self.attn_groups, self.num_accepted_tokens.gpu):
            return self._build_of_target(*args, **kwargs)

    def _build_of_target(self, *args: Any, **kwargs: Any) -> Any:
        plan, batch = self._target_pass, self.input_batch
        groups = self.attn_groups if plan is None else plan.attention_groups
        reads = functools.partial(have_readers, self.vllm_config, groups)
        verifies = self.speculative_config is not None
        self.attn_state = state_of(self.attn_state, kwargs["max_query_len"], verifies, reads)
        name_rows(self, kwargs, HOST.least_drafts)
        cover_padding(self, kwargs)
        rows = kwargs.get("num_tokens_padded") or kwargs["num_tokens"]
        if plan is None or kwargs.get("ubatch_slices") is not None:
            metadata, common = super()._build_attention_metadata(*args, **kwargs)
            return cover_rows(self.vllm_config, metadata, rows), common
        whole = self.kv_cache_config, self.attn_groups, batch.block_table
        self.kv_cache_config, self.attn_groups = plan.config, plan.attention_groups
        batch.block_table = plan.tables
        try:
            metadata, common = super()._build_attention_metadata(*args, **kwargs)
        finally:
            self.kv_cache_config, self.attn_groups, batch.block_table = whole
        requests = kwargs["num_reqs"]
        lengths = self.seq_lens[: kwargs.get("num_reqs_padded") or requests]
        metadata = plan.complete(metadata, requests, lengths)
        return cover_rows(self.vllm_config, metadata, rows), common

    @override(VERIFY_STEPS)
    def _update_full_graph_params_if_needed(self, *args: Any, **kwargs: Any) -> None:
        """Update the launches of a replayed graph for K + 1 tokens per request."""
        if not attends(self.attn_groups):
            return
        with replaced(self, "speculative_config", for_updates(self.speculative_config)):
            super()._update_full_graph_params_if_needed(*args, **kwargs)

    @override(records.PLANNED_CACHES)
    def maybe_add_kv_sharing_layers_to_kv_cache_groups(
        self, kv_cache_config: KVCacheConfig
    ) -> None:
        """Let layers that read another layer's cache join its group, with its spec."""
        super().maybe_add_kv_sharing_layers_to_kv_cache_groups(kv_cache_config)
        give_readers_specs(kv_cache_config.kv_cache_groups, self.shared_kv_cache_layers)

    @override(records.PLANNED_CACHES)
    def _allocate_kv_cache_tensors(self, kv_cache_config: KVCacheConfig) -> dict[str, Any]:
        """Every layer's cache in its final shape, from one plan, if all kinds are planned."""
        specs = cached_specs(kv_cache_config, self.runner_only_attn_layers)
        reason = HOST.why_not_planned(self.vllm_config, specs)
        self.cache_plan = None
        if reason is not None:
            logger.warning("KV caches are allocated by vllm-ascend, not planned: %s", reason)
            with HOST.memory_of_caches():
                raw: dict[str, Any] = super()._allocate_kv_cache_tensors(kv_cache_config)
            return raw
        self.cache_plan = plan_caches(
            self.vllm_config,
            kv_cache_config,
            specs,
            get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase),
            self.draft_layers(),
            kernel_blocks_of(kv_cache_config, self.kernel_block_sizes),
            self.shared_kv_cache_layers,
        )
        self.hybrid_with_attn_and_mamba = False
        with HOST.memory_of_caches():
            self._cache_memory = materialize(self.cache_plan, self.device)
        return self._cache_memory.caches

    @override(records.PLANNED_CACHES)
    def _reshape_kv_cache_tensors(self, config: Any, raw: dict[str, Any], *args: Any) -> Any:
        """As vllm-ascend's; planned caches need no reshaping."""
        if self.cache_plan is not None:
            return raw
        return super()._reshape_kv_cache_tensors(config, raw, *args)

    @override(records.PLANNED_CACHES)
    def _init_kv_zero_meta(self) -> None:
        """Let the scheduler zero blocks in all planned caches."""
        if self.cache_plan is None:
            super()._init_kv_zero_meta()
            return
        specs = cached_specs(self.kv_cache_config, self.runner_only_attn_layers)
        planes = planes_of_groups(self.kv_cache_config, specs, self._cache_memory.planes)
        self._kv_block_zeroer = PlannedBlockZeroer(planes)
