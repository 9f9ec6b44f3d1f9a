# SPDX-License-Identifier: Apache-2.0
"""MkvSpeculator: what model runner V2 asks of drafts, answered by our proposals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from vllm.config import get_layers_from_vllm_config
from vllm.distributed.parallel_state import get_dcp_group
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id

from mkv_ascend.adapters.common.drafting.assembly import (
    Assembly,
    rope_positions,
    run_dummy_passes,
)
from mkv_ascend.adapters.common.drafting.draft import takes_images
from mkv_ascend.adapters.common.drafting.draft_config import separate_draft_config
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import has_recurrent_layers, is_replicated
from mkv_ascend.adapters.common.drafting.mask_tokens import run_dummy_pass
from mkv_ascend.adapters.common.drafting.proposers import strategy_of
from mkv_ascend.adapters.common.drafting.strategies import (
    BlockTables,
    use_draft_recurrent_specs,
)
from mkv_ascend.adapters.common.rebuilding_states import Rebuilding, make_rebuilding
from mkv_ascend.adapters.patching import override
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.draft import HOST, PASSES
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.loading import (
    DFLASH,
    DRAFT_MODEL,
    keep_all_keys_beside_shares,
    load_draft,
    make_draft_config,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.records import SPECULATOR
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.target_output import (
    Step,
    counts_of,
    target_output,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.recurrent import tokens_on_the_device
from mkv_ascend.drafting.counts import DraftCounts

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import CompilationConfig, CUDAGraphMode, VllmConfig


@dataclass(frozen=True)
class RunnerFacts:
    """What proposals ask of a model runner.

    Attributes:
        compilation_config: vLLM's.
        vllm_config: the target's.
        dcp_size: how many ranks share each sequence's keys.
        dcp_rank: which of them this one is.
        dynamic_eplb: whether experts move while the engine runs.
        draft_token_ids_event: set where draft tokens are copied on a stream of their own.
    """

    compilation_config: CompilationConfig
    vllm_config: VllmConfig
    dcp_size: int
    dcp_rank: int
    dynamic_eplb: bool = False
    draft_token_ids_event: None = None

    def _use_aclgraph(self) -> bool:
        return bool(self.compilation_config.cudagraph_mode.has_full_cudagraphs())


def ranks_that_share_keys(config: VllmConfig) -> tuple[int, int]:
    """How many ranks keep a share of each sequence's keys, and which of them this one is."""
    ranks = config.parallel_config.decode_context_parallel_size
    return ranks, get_dcp_group().rank_in_group if ranks > 1 else 0


class MkvSpeculator(DraftModelSpeculator):
    """A draft over any number of KV groups, whose passes are planned before the first runs.

    ``samples``: whether vLLM's own sampling of drafts is asked for: tokens are drawn, or the best
    is found without all logits. ``draft_steps``: the numbers of draft tokens, int64 [K].
    ``draft_counts``: K by batch size, where it is asked for. ``dp_sync``: what the ranks of data
    parallelism agreed on for the target's pass; None on one rank.

    The names that ``Assembly`` and ``AscendDraft`` know from proposers of model runner V1 are
    attributes here.
    """

    dp_sync: Any = None
    draft_attn_layer_names: set[str]

    rebuilding: Rebuilding | None = None
    _token_ids: torch.Tensor

    @override(SPECULATOR)
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        speculative = self.speculative_config
        own = self.method == DRAFT_MODEL
        self.draft_host = HOST
        self.runner = RunnerFacts(
            vllm_config.compilation_config, vllm_config, *ranks_that_share_keys(vllm_config)
        )
        self.num_speculative_tokens = self.num_speculative_steps
        self.max_batch_size = self.max_num_reqs
        self.parallel_drafting = bool(speculative.parallel_drafting)
        self.parallel_drafting_token_id = (
            get_parallel_drafting_token_id(self.draft_model_config.hf_config)
            if self.parallel_drafting
            else 0
        )
        self.parallel_drafting_hidden_state_tensor = None
        self.extra_slots_per_request = 1
        # A recurrent draft's first pass has the target's rows: none more for a sampled token.
        self.net_num_new_slots_per_request = int(own and not has_recurrent_layers(vllm_config))
        self.pass_hidden_states_to_model = not own
        # Heads have the target's positions; a draft model with several axes is refused.
        self.uses_mrope = self.draft_model_config.uses_mrope
        self._share_mtp_indices = False
        self.inputs_embeds: torch.Tensor | None = None
        self._draft_config: VllmConfig | None = None
        self.samples = self.draft_logits is not None or self.use_local_argmax_reduction
        self.draft_steps = torch.arange(
            self.num_speculative_tokens, dtype=torch.int64, device=device
        )
        self.draft_counts = counts_of(vllm_config)
        self._make_buffers()
        self.assembly = Assembly(
            self,
            strategy_of(self.method, vllm_config),
            HOST,
            enforce_eager=bool(speculative.enforce_eager),
        )

    def _make_buffers(self) -> None:
        """Inputs of the draft's passes; a draft model's first pass has a row more per request."""
        rows = self.max_num_tokens + self.net_num_new_slots_per_request * self.max_num_reqs
        integers = {"dtype": torch.int32, "device": self.device}
        self.input_ids = torch.zeros(rows, **integers)
        self.positions = torch.zeros(rows, **integers)
        self.token_indices_to_sample = torch.zeros(rows, **integers)
        if self.uses_mrope:
            axes = self.draft_model_config.mrope_num_dims
            # A column more, as in vLLM: so that no view of it is contiguous.
            self.mrope_positions = torch.zeros(axes, rows + 1, **integers)
        if not self.pass_hidden_states_to_model:
            return
        states = torch.zeros(rows, self.hidden_size, dtype=self.dtype, device=self.device)
        self.hidden_states = self._dflash_hidden_states = states
        self.max_query_tokens = self.max_num_reqs * (1 + self.num_speculative_tokens)
        self._context_positions_buffer = torch.zeros_like(self.positions, dtype=torch.int64)

    @property
    def _draft_attn_layer_names(self) -> set[str]:
        return self.draft_attn_layer_names

    def _get_positions(self, rows: int) -> torch.Tensor:
        return self.mrope_positions[:, :rows] if self.uses_mrope else self.positions[:rows]

    def _rope_positions(self, input_batch: Any) -> torch.Tensor | None:
        """Of the target's pass, on the draft's axes (M-RoPE); None if it has one."""
        rope = self.model_state.rope_state
        positions = input_batch.positions if rope is None else rope.positions
        return rope_positions(self, positions)

    def _create_draft_vllm_config(self) -> VllmConfig:
        """The draft's own configuration, made once."""
        if self._draft_config is None:
            self._draft_config = separate_draft_config(
                self.vllm_config,
                lambda: make_draft_config(self.vllm_config),
                recurrent=has_recurrent_layers(self.vllm_config),
                replicated=is_replicated(self.vllm_config),
            )
        return self._draft_config

    @override(SPECULATOR)
    def load_draft_model(
        self, target_model: nn.Module, target_attn_layer_names: set[str]
    ) -> nn.Module:
        """Load the draft with its own configuration and rotary tables."""
        before = get_layers_from_vllm_config(self.vllm_config, MambaBase)
        model = load_draft(
            target_model,
            self._create_draft_vllm_config(),
            replicated=is_replicated(self.vllm_config),
        )
        if has_recurrent_layers(self.vllm_config):
            use_draft_recurrent_specs(self, before)
        return model

    @override(SPECULATOR)
    def load_model(self, target_model: nn.Module) -> None:
        """Load the draft, and list its layers that have a cache in the order of execution."""
        super().load_model(target_model)
        # DeepSeek-V4's MTP layer keeps its window in a cache that is a layer of its own.
        every = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        self.draft_attn_layer_names = {
            name
            for name in self.draft_attn_layer_names
            if every[name].get_kv_cache_spec(self.vllm_config) is not None
        }
        self.supports_mm_inputs = takes_images(self)
        if self.supports_mm_inputs:
            self.inputs_embeds = torch.zeros_like(self.hidden_states)
        self.assembly.model_loaded()
        if is_replicated(self.vllm_config):
            keep_all_keys_beside_shares(self.assembly.layers().values())

    @override(SPECULATOR)
    def set_attn(
        self,
        model_state: Any,
        kv_cache_config: Any,
        block_tables: Any,
        target_input_buffers: Any,
        target_attn_groups: Any,
    ) -> None:
        """Sort the draft's layers into groups and build the proposal."""
        self.model_state = model_state
        self.assembly.bind(
            kv_cache_config,
            BlockTables(block_tables.input_block_tables, block_tables.kernel_block_sizes),
        )

    def rebuild_with(self, token_ids: torch.Tensor) -> None:
        """Rebuild recurrent states behind prefix hits, from the runner's ``token_ids``."""
        config = self.vllm_config
        self.rebuilding = make_rebuilding(self, config.cache_config, config.scheduler_config)
        self._token_ids = token_ids

    @override(SPECULATOR)
    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """Nothing: graphs of drafts are ours."""

    @override(SPECULATOR)
    def capture(self) -> None:
        """Capture the passes for all verify steps that the target's graphs replay."""
        config = self.vllm_config.compilation_config
        counts = self.draft_counts or DraftCounts(
            [self.num_speculative_tokens] * (self.max_num_reqs + 1)
        )
        shapes = counts.shapes(config.cudagraph_capture_sizes, config.max_cudagraph_capture_size)
        # What ranks agreed on last was for another batch.
        self.dp_sync = None
        # Largest first: smaller graphs then find memory in the pool.
        for shape in sorted(shapes, reverse=True):
            self.assembly.capture_verify_steps(*shape)

    @torch.inference_mode()
    @override(SPECULATOR)
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: torch.Tensor,
        aux_hidden_states: list[torch.Tensor] | None,
        num_sampled: torch.Tensor,
        num_rejected: torch.Tensor,
        last_sampled: torch.Tensor,
        next_prefill_tokens: torch.Tensor,
        temperature: torch.Tensor,
        seeds: torch.Tensor,
        dp_sync: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
    ) -> torch.Tensor:
        """Draft K tokens for each of B requests; int64 [B, K]."""
        self.dp_sync = dp_sync
        if dummy_run:
            return self._run_dummy(
                input_batch.num_tokens, input_batch.num_reqs, is_profile=is_profile
            )
        if self.samples:
            self._copy_request_inputs(
                input_batch.num_reqs, input_batch.idx_mapping, temperature, seeds
            )
        step = Step(
            input_batch,
            last_hidden_states,
            aux_hidden_states,
            num_sampled,
            num_rejected,
            last_sampled,
            next_prefill_tokens,
            self._rope_positions(input_batch),
            mm_inputs,
        )
        target = target_output(step)
        if self.rebuilding is not None and not self.assembly.given_up:
            tokens = tokens_on_the_device(input_batch, self._token_ids)
            self.rebuilding.run(tokens, target.common)
        if self.draft_counts is None:
            return self.assembly.propose(target, agreed=self._agreed_requests())
        count = self.draft_counts.by_requests[input_batch.num_reqs]
        drafted = self.assembly.propose(target, count)
        # vLLM keeps as many columns for all batches; nobody reads those on the right.
        return pad(drafted, (0, self.num_speculative_tokens - drafted.shape[1]))

    def _run_dummy(self, rows: int, requests: int, *, is_profile: bool) -> torch.Tensor:
        """The passes of a step without requests of users; int64 [requests, K]."""
        if self.method == DFLASH:
            rows = min(rows, self.max_query_tokens)
        if self.samples:
            # No logits are kept: those of requests that wait for their next step are still read.
            self.idx_mapping.fill_(-1)
        replayed = self.assembly.run_along(self._agreed_requests())
        if replayed is not None:
            return replayed[:requests]
        rows, rows_across_ranks = PASSES.share_rows(self, rows)
        with PASSES.running_rows(self, None, rows, rows_across_ranks):
            if self.method == DFLASH:
                run_dummy_pass(self, rows, is_profile=is_profile)
                return self.draft_tokens[:requests]
            # Not the buffer: rows that an earlier batch sampled from may be past these.
            sampled = self.token_indices_to_sample.new_zeros(requests)
            return run_dummy_passes(self, rows, requests, sampled)

    def _agreed_requests(self) -> int | None:
        """The most requests of a rank, if all ranks verify K tokens for each, in graphs."""
        sync = self.dp_sync
        if sync is None or sync.eager:
            return None
        verify = sync.uniform_token_count == self.num_speculative_tokens + 1
        return sync.num_reqs if verify else None

    def most_rows_of_a_rank(self) -> int:
        """A number of rows, the same on all ranks, that a first pass has at most on any of them."""
        sync = self.dp_sync
        requests: int = sync.num_reqs
        if self.method == DFLASH:
            return requests * (1 + self.num_speculative_tokens)
        tokens = int(sync.num_tokens_across_dp.max())
        # vLLM's scheduler leaves room for a rank's own rows, and not for the requests of another
        # rank beside its tokens. A traced draft takes no more.
        rows = tokens + self.net_num_new_slots_per_request * requests
        return min(rows, self.max_num_tokens)
