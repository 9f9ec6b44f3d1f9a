# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: the model runner V1 of vllm-ascend 0.30.0rc2, with our choices and drafts."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm.compilation.counter import compilation_counter
from vllm.distributed.parallel_state import is_global_first_rank

from mkv_ascend.adapters.common.drafting.capture_cost import CaptureCost
from mkv_ascend.adapters.common.drafting.proposers import assembly_of, create_proposer
from mkv_ascend.adapters.common.kv_cache.planned_caches import cached_specs, served_plan
from mkv_ascend.adapters.common.patches import accepted_tokens, mamba_kernels
from mkv_ascend.adapters.common.rebuilding_states import (
    Rebuilding,
    make_rebuilding,
    note_requests,
)
from mkv_ascend.adapters.common.target_graphs import (
    for_updates,
    state_of,
    take_lengths_on_the_host,
)
from mkv_ascend.adapters.common.target_pass import AttentionGroups, TargetPass, plan_target_pass
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import override, record, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.v1.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.caching_runner import CachingRunner
from mkv_ascend.attention.report import render

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm_ascend.attention.attention_v1 import AscendAttentionState

logger = get_logger(__name__)

DRAFTS = record(
    name="drafts of the runner",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._get_drafter",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.capture_model",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.propose_draft_token_ids",
    ),
    why="vllm-ascend's proposers draft over one KV group; create_proposer makes ours for the "
    "methods that draft with a model. A recurrent draft reads prefix hits before it proposes. The "
    "log says what the graphs of target and draft each took.",
    until="vllm-ascend's proposers draft over several KV groups of any kind",
    test="tests/emulated/drafting/test_drafting_groups.py",
)

ALLOCATED = record(
    name="after the caches are allocated",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",
    reads=("vllm.model_executor.layers.mamba.ops.ssu_dispatch:initialize_mamba_ssu_backend",),
    why="The kernel of Mamba's state update is never chosen: every decode of a Mamba2 model stops. "
    "The tables of layers and of the plan are logged then.",
    until="vllm-ascend calls initialize_mamba_ssu_backend",
    test="tests/emulated/recurrent/test_mamba_models.py",
)

TARGET_METADATA = record(
    name="the target's pass without the draft",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attention_metadata",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_full_graph_params_if_needed",
    ),
    reads=("vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",),
    writes=("attn_state", "attn_groups", "kv_cache_config", "block_table", "speculative_config"),
    why="Metadata is built for the draft's layers too, which nobody reads in the target's pass, "
    "and for each KV group anew where groups differ by nothing but their block table. Dummy verify "
    "steps before a capture are in the state of a decode. Captured launches of MLA are given K + 1 "
    "lengths per request for the methods eagle, eagle3 and mtp alone.",
    until="vllm-ascend leaves the draft's groups out, and builds once per distinct need",
    test="tests/emulated/drafting/test_drafting_cost.py"
    "::test_the_targets_pass_costs_what_it_costs_without_a_draft",
)


class MkvModelRunner(CachingRunner):
    """Runs the target and, where there is one, the draft."""

    attn_groups: AttentionGroups
    attn_state: AscendAttentionState
    _target_pass: TargetPass | None = None
    _rebuilding: Rebuilding | None = None

    @override(DRAFTS)
    def _get_drafter(self) -> Any:
        method = self.speculative_config.method
        return create_proposer(method, self.vllm_config, self.device, self, HOST)

    @override(ALLOCATED)
    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        """Allocate the caches, then log the tables of layers and of the plan once."""
        super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        mamba_kernels.prepare(self.vllm_config, self.kv_cache_config)
        if self.compilation_config.cudagraph_mode.has_full_cudagraphs():
            groups = [group for groups in self.attn_groups for group in groups]
            take_lengths_on_the_host(x for group in groups for x in group.metadata_builders)
        self._plan_the_targets_pass()
        self._rebuilding = make_rebuilding(self.drafter, self.cache_config, self.scheduler_config)
        if is_global_first_rank():
            self._log_tables()

    def _log_tables(self) -> None:
        logger.info("%s", render(self.layer_rows()))
        for part in (assembly_of(self.drafter), self._rebuilding):
            if part is not None:
                logger.info("%s", part.describe())
        if self.cache_plan is not None:
            specs = cached_specs(self.kv_cache_config, self.runner_only_attn_layers)
            backends = {row.name: row.backend for row in self.layer_rows()}
            config = self.vllm_config
            served = served_plan(self.cache_plan, self.kv_cache_config, specs, config, backends)
            logger.info("%s", served)

    @override(DRAFTS)
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

    def _plan_the_targets_pass(self) -> None:
        """Limit the metadata of the target's pass to its own layers, made once.

        This must follow the allocation of caches, because vllm-ascend finds kernel block sizes
        and caches through the attention groups of all layers.
        """
        drafts_apart = assembly_of(self.drafter) is not None or not self._draft_layers()
        tables = self.input_batch.block_table
        self._target_pass = None
        if (
            not drafts_apart  # the drafter reads metadata of the target's pass
            or self.use_dcp or self.use_compress  # tables hold shares of a sequence, or no tokens
            or len(tables.block_tables) != len(self.attn_groups)  # layers without a cache
        ):  # fmt: skip
            return
        self._target_pass = plan_target_pass(
            self.kv_cache_config,
            self.attn_groups,
            tables.block_tables,
            self._draft_layers(),
            HOST.sharing_of,
        )

    @override(DRAFTS)
    def _update_states(self, scheduler_output: Any) -> Any:
        """As vllm-ascend's; also notes requests that begin behind computed tokens."""
        if self._rebuilding is not None:
            note_requests(self._rebuilding.lost, scheduler_output)
        return super()._update_states(scheduler_output)

    @override(DRAFTS)
    def propose_draft_token_ids(
        self, token_ids: Any, sampling: Any, scheduled: Any, spec: Any, common: Any, *args: Any
    ) -> Any:
        """As vllm-ascend's, after the draft has rebuilt its states behind prefix hits."""
        if self._rebuilding is not None:
            self._rebuilding.run(self.input_batch, common)
        return super().propose_draft_token_ids(token_ids, sampling, scheduled, spec, common, *args)

    @override(TARGET_METADATA)
    def _build_attention_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """Metadata of the target's own layers, built once per distinct need."""
        if self.speculative_config is None:
            return self._build_of_target(*args, **kwargs)
        with accepted_tokens.with_accepted_tokens(self.attn_groups, self.num_accepted_tokens.gpu):
            return self._build_of_target(*args, **kwargs)

    def _build_of_target(self, *args: Any, **kwargs: Any) -> Any:
        self.attn_state = state_of(self.attn_state, kwargs["max_query_len"])
        plan, batch = self._target_pass, self.input_batch
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

    @override(TARGET_METADATA)
    def _update_full_graph_params_if_needed(self, *args: Any, **kwargs: Any) -> None:
        """Update the launches of a replayed graph for K + 1 tokens per request."""
        with replaced(self, "speculative_config", for_updates(self.speculative_config)):
            super()._update_full_graph_params_if_needed(*args, **kwargs)
