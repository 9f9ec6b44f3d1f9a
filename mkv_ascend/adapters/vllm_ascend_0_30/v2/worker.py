# SPDX-License-Identifier: Apache-2.0
"""The worker of vllm-ascend 0.30.0rc2 with model runner V2, our patches, and adapters of rows."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.worker.gpu import attn_utils
from vllm.v1.worker.gpu.lora_utils import LoraState
from vllm_ascend.worker.worker import NPUWorker

from mkv_ascend.adapters.common import giving_up, graphs, pipeline, start_up, weights
from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.drafting.proposers import assembly_of
from mkv_ascend.adapters.common.failed_ranks import ending_unheard
from mkv_ascend.adapters.common.graphs import take_lengths_on_the_host
from mkv_ascend.adapters.common.kv_cache.block_zeroer import prepare_blocks
from mkv_ascend.adapters.common.patches import experts, recurrent
from mkv_ascend.adapters.common.patches.attention import drop_rows_of_other_sizes
from mkv_ascend.adapters.common.patches.auxiliary_states import make_room_for_mtp
from mkv_ascend.adapters.common.rebuilding_states import note_requests
from mkv_ascend.adapters.common.sleeping import SleepingDraft
from mkv_ascend.adapters.patching import override, record, replaced
from mkv_ascend.adapters.platform_slot import OURS
from mkv_ascend.adapters.vllm_ascend_0_30.common import draft_weights
from mkv_ascend.adapters.vllm_ascend_0_30.common.draft_weights import graphs_sleep
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.planned_specs import planned_specs
from mkv_ascend.adapters.vllm_ascend_0_30.common.patches import in_worker
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

    from mkv_ascend.adapters.common.drafting.assembly import Assembly


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
"""What this worker needs beside the patches of either runner, before a model is built."""


def apply_patches() -> None:
    """Apply them. Idempotent."""
    in_worker.apply()
    for patch in PATCHES:
        patch.apply()


class MkvWorkerV2(NPUWorker):
    """One NPU's worker process with model runner V2, which stays vllm-ascend's own."""

    planned_caches: PlannedCaches

    @override(OURS)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        apply_patches()
        super().__init__(*args, **kwargs)
        self.sleeping_draft = SleepingDraft()

    @override(OURS)
    def compile_or_warm_up_model(self) -> Any:
        """As vllm-ascend's; then say what this worker serves, and count from now on."""
        with ending_unheard(self, starting=True):
            return start_up.warm_up(self, super().compile_or_warm_up_model)

    @override(OURS)
    def sleep(self, level: int = 1) -> None:
        """As vllm-ascend's, which knows neither the draft's graphs nor, at level 2, its weights."""
        runner, assembly = self.model_runner, self.assembly() if graphs_sleep() else None
        self.sleeping_draft.fall_asleep(level, runner, runner.speculator, assembly)
        super().sleep(level)

    @override(OURS)
    def wake_up(self, tags: list[str] | None = None) -> None:
        """As vllm-ascend's; then caches and the draft are as they were."""
        super().wake_up(tags)
        self.sleeping_draft.wake_up(tags, self.model_runner.kv_caches)

    @override(OURS)
    def update_max_model_len(self, max_model_len: int) -> None:
        """As vllm-ascend's, whose block tables end there; a draft must not read behind them."""
        super().update_max_model_len(max_model_len)
        drafter = self.model_runner.speculator
        if hasattr(drafter, "max_model_len"):
            drafter.max_model_len = max_model_len

    @override(OURS)
    def start_weight_update(self) -> None:
        """Begin new weights of the target, whatever the last ones were for."""
        draft_weights.aim(self)
        super().start_weight_update()

    @override(OURS)
    def finish_weight_update(self) -> None:
        """As vllm-ascend's; then what a draft makes of its weights is made of the new ones."""
        with draft_weights.finishing(self):
            super().finish_weight_update()

    def start_draft_weight_update(self) -> None:
        """Begin new weights of the draft, as ``start_weight_update`` does for the target.

        Raises:
            NotImplementedError: nothing drafts here.
            RuntimeError: the draft sleeps.
        """
        draft_weights.aim_at_draft(self, self.model_runner.speculator)
        super().start_weight_update()

    def served(self) -> start_up.Served:
        """What this worker serves, once its caches are there."""
        rows, text, assembly = self.layer_rows(), None, self.assembly()
        if self.planned_caches.plan is not None:
            backends = {row.name: row.backend for row in rows}
            text = self.planned_caches.describe(self.model_runner.kv_cache_config, backends)
        rebuilding = None if assembly is None else self.model_runner.speculator.rebuilding
        return start_up.Served(rows, assembly, rebuilding, self.planned_caches.plan, text)

    def assembly(self) -> Assembly | None:
        """What serves our draft; None without a draft of ours."""
        return assembly_of(self.model_runner.speculator)

    @override(ASKED)
    def load_model(self, *args: object, **kwargs: object) -> None:
        """Load target and draft; afterwards every layer has its backend.

        Raises:
            SelectionError: no backend fits a layer, or a pattern of ``attention.layers``
                matches none.
        """
        experts.make_for_draft(self.vllm_config)
        with with_auxiliary_states(self.vllm_config):
            super().load_model(*args, **kwargs)
        make_room_for_mtp(self.model_runner.model)
        self._serve_on_stages()
        if self.vllm_config.lora_config is not None:
            self.model_runner.lora_state = AdaptersOfRows(self.model_runner.req_states)
        drop_rows_of_other_sizes()
        layers.check_options(self.vllm_config)

    def _serve_on_stages(self) -> None:
        """What drafts need once all pipeline stages have loaded their models."""
        runner = self.model_runner
        take_back_on_the_host(runner, self.vllm_config)
        pipeline.share_embeddings(runner, runner.speculator)
        weights.refuse(self.vllm_config, runner.speculator)
        weights.warn(runner, runner.speculator)

    def _draft_layers(self) -> frozenset[str]:
        speculator = self.model_runner.speculator
        return frozenset(getattr(speculator, "draft_attn_layer_names", ()))

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Each layer with its backend and its KV group, in the order of creation."""
        return layers.rows_of_layers(
            self.vllm_config, self._draft_layers(), self.model_runner.kv_cache_config
        )

    def attention_layers(self) -> list[dict[str, Any]]:
        return start_up.attention_layers(self.layer_rows())

    def draft_replays(self) -> dict[str, Any]:
        return start_up.draft_replays(self.assembly())

    @override(ALLOCATION)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        with pages_of_any_sizes() as self._unaligned:
            return planned_specs(self.vllm_config, super().get_kv_cache_spec, self._draft_layers())

    @override(graphs.GRAPH_MEMORY)
    def determine_available_memory(self) -> int:
        """As vllm-ascend's, less what graphs will take; ends as ``execute_model`` does."""
        available = super().determine_available_memory
        with ending_unheard(self, starting=True):
            return graphs.left_by_graphs(self, available, self._measure_graphs)

    def _measure_graphs(self) -> int:
        """Bytes that graphs will take, as vLLM's model runner V2 measures it."""
        register_all_kvcache_specs(self.vllm_config)
        runner = self.model_runner
        allocate = runner.initialize_kv_cache
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        before = graphs.LayersAsTheyWere(layers)

        def allocate_few_blocks(kv_cache_config: KVCacheConfig, is_profiling: bool) -> None:
            with self._caches_from_a_plan(kv_cache_config):
                allocate(kv_cache_config)
            before.note_caches()

        def drop() -> None:
            """Drop what vLLM does not know to hold planned caches and the draft's graphs."""
            del self.planned_caches
            runner.kv_block_zeroer = None
            if (assembly := self.assembly()) is not None:
                assembly.forget_graphs()

        with before.measured_apart(), replaced(runner, "initialize_kv_cache", allocate_few_blocks):
            taken = int(runner.profile_cudagraph_memory())
        before.drop_caches(drop)
        return taken

    @override(ALLOCATION)
    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches from a plan, and zero new blocks in them."""
        with self._caches_from_a_plan(kv_cache_config):
            super().initialize_from_config(kv_cache_config)

    @contextlib.contextmanager
    def _caches_from_a_plan(self, kv_cache_config: KVCacheConfig) -> Iterator[None]:
        """Let caches that are allocated in the block come from a plan; then build on them."""
        self.planned_caches = PlannedCaches(self.vllm_config, self._draft_layers(), self._unaligned)
        self.planned_caches.let_readers_join(kv_cache_config)
        allocate = functools.partial(self.planned_caches.allocate, attn_utils.allocate_kv_cache)
        with replaced(attn_utils, "allocate_kv_cache", allocate):
            yield
        self._after_allocation()

    @override(ALLOCATION)
    @override(REQUESTS_BEHIND_HITS)
    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        """As vllm-ascend's; also notes requests that begin behind computed tokens, and a draft that
        is given up. A rank that nobody hears does not outlive its failure."""
        with ending_unheard(self):
            giving_up.obey(self.assembly(), scheduler_output)
            runner = self.model_runner
            scheduler_output = prepare_blocks(runner, "kv_block_zeroer", scheduler_output)
            rebuilding = getattr(runner.speculator, "rebuilding", None)
            if rebuilding is not None:
                note_requests(rebuilding.lost, scheduler_output)
            return super().execute_model(scheduler_output)

    @override(OURS)
    def sample_tokens(self, grammar_output: Any) -> Any:
        """As vllm-ascend's, the draft's passes in it; ends as ``execute_model`` does."""
        with ending_unheard(self):
            return super().sample_tokens(grammar_output)

    def _tell_drafts(self) -> None:
        """Tell the scheduler the draft tokens that it asks for, where the runner would not."""
        runner, stages = self.model_runner, self.parallel_config.pipeline_parallel_size
        counts = runner.speculator.draft_counts
        if counts is not None or stages > 1:
            running = runner.req_states.req_id_to_index if stages > 1 else ()
            runner.draft_tokens_handler = ScheduledDrafts(runner.device, counts, running)

    def _after_allocation(self) -> None:
        """Zero planned caches by the block, leave the draft out of the target's pass."""
        runner = self.model_runner
        if self.planned_caches.plan is not None and runner.kv_block_zeroer is not None:
            runner.kv_block_zeroer = self.planned_caches.zeroer(runner.kv_cache_config)
        if self.assembly() is not None:
            runner.speculator.rebuild_with(runner.req_states.all_token_ids.gpu)
            self._tell_drafts()
            runner.attn_groups = without_layers(runner.attn_groups, self._draft_layers())
        do_without_missing_kinds(runner)
        groups = [group for kv_group in runner.attn_groups for group in kv_group]
        builders = [builder for group in groups for builder in group.metadata_builders]
        recurrent.mark_builders(builders, name_rows)
        if runner.compilation_config.cudagraph_mode.has_full_cudagraphs():
            take_lengths_on_the_host(builders)
