# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunnerV2: vllm-ascend's model runner V2 with our choices and drafts."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm_ascend.worker.v2.model_runner import NPUModelRunner

from mkv_ascend.adapters.common import giving_up, graphs, pipeline, start_up, weights
from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.drafting.proposers import assembly_of
from mkv_ascend.adapters.common.graphs import take_lengths_on_the_host
from mkv_ascend.adapters.common.kv_cache.block_zeroer import prepare_blocks
from mkv_ascend.adapters.common.patches import experts, recurrent
from mkv_ascend.adapters.common.patches.attention import drop_rows_of_other_sizes
from mkv_ascend.adapters.common.patches.auxiliary_states import make_room_for_mtp
from mkv_ascend.adapters.common.rebuilding_states import note_requests
from mkv_ascend.adapters.common.target_pass import AttentionGroups
from mkv_ascend.adapters.patching import override, record, replaced
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.planned_specs import planned_specs
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.target_output import ScheduledDrafts
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import graphs as graphs_of_v2
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import recurrent as recurrent_of_v2
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches import speculators
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.recurrent import (
    REQUESTS_BEHIND_HITS,
    name_rows,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.speculators import ASKED, with_auxiliary_states
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.stages import (
    do_without_missing_kinds,
    take_back_on_the_host,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.planned_caches import (
    ALLOCATION,
    PlannedCaches,
    pages_of_any_sizes,
    without_layers,
)
from mkv_ascend.attention.report import LayerRow

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig


# Which adapter (LoRA) each row of logits has, where requests have several such rows.

ADAPTED = record(
    name="adapters of verify steps in model runner V2",
    target=(
        "vllm.v1.worker.gpu.lora_utils:LoraState.__init__",
        "vllm.v1.worker.gpu.lora_utils:LoraState.make_lora_inputs",
    ),
    reads=(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.gather_batch_req_state",
        "vllm_ascend.lora.punica_npu:PunicaWrapperNPU.add_lora_logits",
    ),
)


class AdaptersOfRows(LoraState):
    """Names an adapter for each row of logits.

    Args:
        requests: the runner's table of requests.
    """

    @override(ADAPTED)
    def __init__(self, requests: Any) -> None:
        super().__init__(requests.max_num_reqs)
        self._requests = requests

    @override(ADAPTED)
    def make_lora_inputs(
        self, req_ids: list[str], idx_mapping: np.ndarray, num_scheduled_tokens: np.ndarray
    ) -> tuple[tuple[int, ...], tuple[int, ...], set[LoRARequest]]:
        """Adapters of rows of logits, of tokens, and those of all.

        A request that decodes has a row for each of its tokens, a chunk of a prompt has one.
        """
        requests = self._requests
        computed = requests.num_computed_prefill_tokens[idx_mapping]
        decodes = computed >= requests.prefill_len.np[idx_mapping]
        rows = np.where(decodes, num_scheduled_tokens, 1)
        _, tokens, adapters = super().make_lora_inputs(req_ids, idx_mapping, num_scheduled_tokens)
        return tuple(self.lora_ids[idx_mapping].repeat(rows)), tokens, adapters


PATCHES = (
    speculators.make_speculator,
    speculators.rotate_without_the_kernel,
    graphs_of_v2.update_for_verify_steps,
    graphs_of_v2.offer_graphs_of_each_count,
    graphs_of_v2.note_by_graph,
    recurrent_of_v2.sort_rows,
    recurrent_of_v2.has_room,
    recurrent_of_v2.capture_any_count,
)
"""What this runner needs beside the patches of either one, before a model is built."""


def apply_patches() -> None:
    """Apply them. Idempotent."""
    for patch in PATCHES:
        patch.apply()


class MkvModelRunnerV2(NPUModelRunner):
    """Runs the target and, where there is one, the draft."""

    planned_caches: PlannedCaches
    attn_groups: AttentionGroups
    kv_block_zeroer: Any
    _unaligned: Sequence[ValueError] = ()

    @property
    def drafter(self) -> Any:
        """What drafts; None without speculation, and on first stages."""
        return self.speculator

    @override(ASKED)
    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load target and draft; afterwards every layer has its backend.

        Raises:
            SelectionError: no backend fits a layer, or a pattern of ``attention.layers``
                matches none.
        """
        config = self.vllm_config
        experts.make_for_draft(config)
        with with_auxiliary_states(config):
            super().load_model(*args, **kwargs)
        make_room_for_mtp(self.model)
        take_back_on_the_host(self, config)
        pipeline.share_embeddings(self, self.speculator)
        weights.refuse(config, self.speculator)
        weights.warn(self, self.speculator)
        if config.lora_config is not None:
            self.lora_state = AdaptersOfRows(self.req_states)
        drop_rows_of_other_sizes()
        layers.check_options(config)

    def draft_layers(self) -> frozenset[str]:
        """Names of the draft's layers."""
        return frozenset(getattr(self.speculator, "draft_attn_layer_names", ()))

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Each layer with its backend and its KV group, in the order of creation."""
        return layers.rows_of_layers(self.vllm_config, self.draft_layers(), self.kv_cache_config)

    def served(self) -> start_up.Served:
        """What this runner serves, once its caches are there."""
        rows, text, assembly = self.layer_rows(), None, assembly_of(self.speculator)
        if self.planned_caches.plan is not None:
            backends = {row.name: row.backend for row in rows}
            text = self.planned_caches.describe(self.kv_cache_config, backends)
        rebuilding = None if assembly is None else self.speculator.rebuilding
        return start_up.Served(rows, assembly, rebuilding, self.planned_caches.plan, text)

    @override(ALLOCATION)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        with pages_of_any_sizes() as self._unaligned:
            return planned_specs(self.vllm_config, super().get_kv_cache_spec, self.draft_layers())

    @override(ALLOCATION)
    def profile_cudagraph_memory(self) -> int:
        """As vLLM's, with a few blocks of planned caches, which are let go of afterwards."""
        register_all_kvcache_specs(self.vllm_config)
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        before = graphs.LayersAsTheyWere(layers)

        def drop() -> None:
            """Drop what vLLM does not know to hold planned caches and the draft's graphs."""
            del self.planned_caches
            self.kv_block_zeroer = None
            if (assembly := assembly_of(self.speculator)) is not None:
                assembly.forget_graphs()

        with before.measured_apart(), replaced(self, "_allocated", before.note_caches):
            taken = int(super().profile_cudagraph_memory())
        before.drop_caches(drop)
        return taken

    def _allocated(self) -> None:
        """Is called with each allocation of caches."""

    @override(ALLOCATION)
    def initialize_kv_cache(
        self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> None:
        """Allocate the caches from a plan, and make what reads them."""
        kwargs.pop("is_profiling", None)  # of vLLM's method, which vllm-ascend's does not have
        self.planned_caches = PlannedCaches(self.vllm_config, self.draft_layers(), self._unaligned)
        self.planned_caches.let_readers_join(kv_cache_config)
        allocate = functools.partial(self.planned_caches.allocate, attn_utils.allocate_kv_cache)
        with replaced(attn_utils, "allocate_kv_cache", allocate):
            super().initialize_kv_cache(kv_cache_config, *args, **kwargs)
        self._after_allocation()
        self._allocated()

    @override(ALLOCATION)
    def _init_kv_zero_meta(self) -> None:
        """Let the scheduler zero blocks in all planned caches."""
        if self.planned_caches.plan is None:
            super()._init_kv_zero_meta()
        else:
            self.kv_block_zeroer = self.planned_caches.zeroer(self.kv_cache_config)

    @override(ALLOCATION)
    @override(REQUESTS_BEHIND_HITS)
    def execute_model(self, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any) -> Any:
        """As vllm-ascend's; also notes requests that begin behind computed tokens, and a draft that
        is given up."""
        if not kwargs.get("dummy_run"):
            giving_up.obey(assembly_of(self.speculator), scheduler_output)
            scheduler_output = prepare_blocks(self, "kv_block_zeroer", scheduler_output)
            rebuilding = getattr(self.speculator, "rebuilding", None)
            if rebuilding is not None:
                note_requests(rebuilding.lost, scheduler_output)
        return super().execute_model(scheduler_output, *args, **kwargs)

    def _tell_drafts(self) -> None:
        """Tell the scheduler the draft tokens that it asks for, where the runner would not."""
        counts = self.speculator.draft_counts
        stages = self.vllm_config.parallel_config.pipeline_parallel_size
        if counts is not None or stages > 1:
            running = self.req_states.req_id_to_index if stages > 1 else ()
            self.draft_tokens_handler = ScheduledDrafts(self.device, counts, running)

    def _after_allocation(self) -> None:
        """Leave the draft out of the target's pass."""
        if assembly_of(self.speculator) is not None:
            self.speculator.rebuild_with(self.req_states.all_token_ids.gpu)
            self._tell_drafts()
            self.attn_groups = without_layers(self.attn_groups, self.draft_layers())
        do_without_missing_kinds(self)
        groups = [group for kv_group in self.attn_groups for group in kv_group]
        builders = [builder for group in groups for builder in group.metadata_builders]
        recurrent.mark_builders(builders, name_rows)
        if self.compilation_config.cudagraph_mode.has_full_cudagraphs():
            take_lengths_on_the_host(builders)
