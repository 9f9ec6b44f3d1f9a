# SPDX-License-Identifier: Apache-2.0
"""MkvSpeculator: what model runner V2 asks of drafts, answered by our proposals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from vllm.config import get_layers_from_vllm_config
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator
from vllm.v1.worker.gpu.spec_decode.utils import get_parallel_drafting_token_id
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.utils import is_drafter_moe_model

from mkv_ascend.adapters.common.drafting.assembly import Assembly, context_shares, rope_positions
from mkv_ascend.adapters.common.drafting.draft import AscendDraft, takes_images
from mkv_ascend.adapters.common.drafting.draft_config import separate_draft_config
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import has_recurrent_layers, is_replicated
from mkv_ascend.adapters.common.drafting.mask_tokens import run_dummy_pass
from mkv_ascend.adapters.common.drafting.proposers import strategy_of
from mkv_ascend.adapters.common.drafting.strategies import use_draft_recurrent_specs
from mkv_ascend.adapters.common.rebuilding_states import Rebuilding, make_rebuilding
from mkv_ascend.adapters.patching import override
from mkv_ascend.adapters.port import BlockTables, DraftFacts
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import HOST, send_tokens_to_experts
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
from mkv_ascend.drafting.draft import DraftBuffers, HiddenStates, Metadata, PassBatch
from mkv_ascend.drafting.proposal import run_passes

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import CUDAGraphMode, VllmConfig


class SpeculatorDraft(AscendDraft):
    """``Draft`` of a speculator whose model is loaded."""

    passes: MkvSpeculator
    _drafted = 0
    """Tokens that this proposal has drafted for each request."""
    _positions: torch.Tensor
    """Of this pass's rows; of later passes on several axes, if the draft has them (M-RoPE)."""
    _sampled_positions: torch.Tensor
    """In the sequence, of the rows that the first pass is sampled from."""

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        send_tokens_to_experts()
        if positions is None:
            self._drafted, self._positions = 0, self.buffers.positions
        else:
            self._positions = positions
        return super().forward(rows, positions)

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Draft``; by the speculator, where it draws tokens or needs more than the best."""
        speculator = self.passes
        if not speculator.samples:
            return super().sample(states, rows, out)
        sampled, positions = states[rows], self._positions[..., rows]
        if not self._drafted:
            self._sampled_positions = positions
        elif positions.dim() > 1:
            positions = self._sampled_positions + self._drafted
        tokens: torch.Tensor = speculator.sample_draft(
            sampled,
            positions,
            speculator.idx_mapping[: sampled.shape[0]],
            speculator.temperature,
            speculator.seeds,
            speculator.draft_steps[self._drafted],
            speculator.draft_logits,
        )
        self._drafted += 1
        return tokens if out is None else out.copy_(tokens)


class MkvSpeculator(DraftModelSpeculator):
    """A draft over any number of KV groups, whose passes are planned before the first runs.

    It is the ``PassHost`` of its draft.

    ``samples``: whether vLLM's own sampling of drafts is asked for: tokens are drawn, or the best
    is found without all logits. ``draft_steps``: the numbers of draft tokens, int64 [K].
    ``draft_counts``: K by batch size, where it is asked for. ``dp_sync``: what the ranks of data
    parallelism agreed on for the target's pass; None on one rank.
    """

    dp_sync: Any = None
    draft_attn_layer_names: set[str]
    max_model_len: int
    supports_mm_inputs: bool
    fits_each_pass = False
    run = staticmethod(run_passes)

    rebuilding: Rebuilding | None = None
    _token_ids: torch.Tensor

    @override(SPECULATOR)
    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        own = self.method == DRAFT_MODEL
        in_parallel = bool(self.speculative_config.parallel_drafting)
        # A recurrent draft's first pass has the target's rows: none more for a sampled token.
        new_rows = int(own and not has_recurrent_layers(vllm_config))
        self.facts = DraftFacts(
            vllm_config=vllm_config,
            method=self.method,
            device=device,
            num_speculative_tokens=self.num_speculative_steps,
            max_requests=self.max_num_reqs,
            max_tokens=self.max_num_tokens + new_rows * self.max_num_reqs,
            new_rows=new_rows,
            takes_states=not own,
            in_parallel=in_parallel,
            mask_token_id=(
                get_parallel_drafting_token_id(self.draft_model_config.hf_config)
                if in_parallel
                else 0
            ),
            enforce_eager=bool(self.speculative_config.enforce_eager),
            shares=context_shares(vllm_config),
        )
        self.samples = self.draft_logits is not None or self.use_local_argmax_reduction
        self.draft_steps = torch.arange(
            self.num_speculative_steps, dtype=torch.int64, device=device
        )
        self.draft_counts = counts_of(vllm_config)
        strategy = strategy_of(self.method, vllm_config)
        self.assembly = Assembly(self.facts, strategy, HOST, self, self._make_buffers())

    def _make_buffers(self) -> DraftBuffers:
        """Inputs of the draft's passes; a draft model's first pass has a row more per request."""
        rows, axes, hidden_states = self.facts.max_tokens, None, None
        integers: dict[str, Any] = {"dtype": torch.int32, "device": self.device}
        # Heads have the target's positions; a draft model with several axes is refused.
        if self.draft_model_config.uses_mrope:
            number = self.draft_model_config.mrope_num_dims
            # A column more, as in vLLM: so that no view of it is contiguous.
            axes = torch.zeros(number, rows + 1, **integers)
        if self.facts.takes_states:
            hidden_states = torch.zeros(
                rows, self.hidden_size, dtype=self.dtype, device=self.device
            )
        return DraftBuffers(
            token_ids=torch.zeros(rows, **integers),
            positions=torch.zeros(rows, **integers),
            sample_rows=torch.zeros(rows, **integers),
            rope_positions=axes,
            hidden_states=hidden_states,
        )

    @functools.cached_property
    def in_step(self) -> bool:
        """See ``PassHost``; without experts, a draft's pass is this rank's own."""
        return self.dp_size > 1 and is_drafter_moe_model(self.vllm_config)

    def replays_target(self) -> bool:
        config = self.vllm_config.compilation_config
        return bool(config.cudagraph_mode.has_full_cudagraphs())

    def replays_in_step(self) -> bool:
        """See ``PassHost``; vLLM's ranks agree on what all of their requests verify."""
        return self.draft_counts is None and self.in_step

    def copied_drafts(self) -> None:
        """See ``PassHost``; none are."""

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``; from what ranks agreed on for the target's pass, without asking again.

        vLLM asks all ranks where no rows of theirs are named, so they always are. Without a pass of
        the target, as in a capture, all have as many.
        """
        if self.dp_sync is not None and self.in_step:
            rows = self.most_rows_of_a_rank()
        return rows, torch.full((self.dp_size,), rows, dtype=torch.int32)

    def running(
        self, metadata: Metadata | None, batch: PassBatch
    ) -> contextlib.AbstractContextManager[None]:
        return self._running(metadata, batch.input_rows, batch.rows_across_ranks)

    @contextlib.contextmanager
    def _running(
        self, metadata: Metadata | None, rows: int, rows_across_ranks: torch.Tensor | None
    ) -> Iterator[None]:
        """The forward context of a pass of ``rows`` rows; ``rows_across_ranks`` as in a batch."""
        with set_forward_context(
            metadata,
            self.vllm_config,
            num_tokens=rows,
            num_tokens_across_dp=rows_across_ranks,
            batch_descriptor=BatchDescriptor(num_tokens=rows),
        ):
            # Launches of MLA are noted apart from the target's by it.
            _EXTRA_CTX.is_draft_model = True
            yield

    def _rope_positions(self, input_batch: Any) -> torch.Tensor | None:
        """Of the target's pass, on the draft's axes (M-RoPE); None if it has one."""
        rope = self.model_state.rope_state
        positions = input_batch.positions if rope is None else rope.positions
        return rope_positions(self.assembly.draft.buffers, positions)

    @override(SPECULATOR)
    def load_draft_model(
        self, target_model: nn.Module, target_attn_layer_names: set[str]
    ) -> nn.Module:
        """Load the draft with its own configuration and rotary tables."""
        before = get_layers_from_vllm_config(self.vllm_config, MambaBase)
        config = self.vllm_config
        recurrent, replicated = has_recurrent_layers(config), is_replicated(config)
        self._own_config = separate_draft_config(
            config, lambda: make_draft_config(config), recurrent=recurrent, replicated=replicated
        )
        model = load_draft(target_model, self._own_config, replicated=replicated)
        if recurrent:
            use_draft_recurrent_specs(config, self._own_config, before)
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
        takes = self.supports_mm_inputs and takes_images(self.facts, self.model)
        self.supports_mm_inputs = takes
        states = self.assembly.inputs.hidden_states
        self.assembly.model_loaded(
            self.model,
            self._own_config,
            self.draft_attn_layer_names,
            torch.zeros_like(states) if takes and states is not None else None,
            SpeculatorDraft,
        )
        if is_replicated(self.vllm_config):
            keep_all_keys_beside_shares(self.assembly.draft.loaded.layers.values())

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
            [self.num_speculative_steps] * (self.max_num_reqs + 1)
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
        return pad(drafted, (0, self.num_speculative_steps - drafted.shape[1]))

    def _run_dummy(self, rows: int, requests: int, *, is_profile: bool) -> torch.Tensor:
        """The passes of a step without requests of users; int64 [requests, K]."""
        draft = self.assembly.draft
        if self.method == DFLASH:
            rows = min(rows, draft.buffers.token_ids.shape[0])
        if self.samples:
            # No logits are kept: those of requests that wait for their next step are still read.
            self.idx_mapping.fill_(-1)
        replayed = self.assembly.run_along(self._agreed_requests())
        if replayed is not None:
            return replayed[:requests]
        rows, rows_across_ranks = draft.share_rows(rows)
        with self._running(None, rows, rows_across_ranks):
            if self.method == DFLASH:
                run_dummy_pass(draft, rows, is_profile=is_profile)
                return self.draft_tokens[:requests]
            # Not the buffer: rows that an earlier batch sampled from may be past these.
            sampled = draft.buffers.sample_rows.new_zeros(requests)
            return self.assembly.run_dummy_passes(rows, requests, sampled)

    def _agreed_requests(self) -> int | None:
        """The most requests of a rank, if all ranks verify K tokens for each, in graphs."""
        sync = self.dp_sync
        if sync is None or sync.eager:
            return None
        verify = sync.uniform_token_count == self.num_speculative_steps + 1
        return sync.num_reqs if verify else None

    def most_rows_of_a_rank(self) -> int:
        """A number of rows, the same on all ranks, that a first pass has at most on any of them."""
        sync = self.dp_sync
        requests: int = sync.num_reqs
        if self.method == DFLASH:
            return requests * (1 + self.num_speculative_steps)
        tokens = int(sync.num_tokens_across_dp.max())
        # vLLM's scheduler leaves room for a rank's own rows, and not for the requests of another
        # rank beside its tokens. A traced draft takes no more.
        rows = tokens + self.facts.new_rows * requests
        return min(rows, self.max_num_tokens)
