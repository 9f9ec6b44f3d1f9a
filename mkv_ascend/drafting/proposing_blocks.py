# SPDX-License-Identifier: Apache-2.0
"""A proposal of method dflash: one pass over a block of masks, over any number of KV groups.

The draft turns the target's hidden states into keys and values of its own, the context, and writes
them before its pass. The pass has 1 + K rows for each request: the token that the target sampled,
and a mask for each token to be drafted. They attend to all of the context and to each other, so
lengths must be exact: rejected tokens are no part of the context.

vllm-ascend's proposer needs Triton for it, and has one table and one set of slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.utils import enable_sp, lmhead_tp_enable

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.groups import DraftGroups
from mkv_ascend.drafting.plan import LaterSteps, Sizes
from mkv_ascend.drafting.proposing import Proposing


@dataclass(frozen=True)
class LayerInGroup:
    """Stands for an attention layer where vLLM writes the context's keys and values into it.

    vLLM's draft hands the same slots to all layers; here those of all KV groups, of which the layer
    takes its own.
    """

    layer: Any
    table: int

    @property
    def kv_cache(self) -> Any:
        """The layer's cache."""
        return self.layer.kv_cache

    @property
    def impl(self) -> LayerInGroup:
        """What ``do_kv_cache_update`` is asked of."""
        return self

    def do_kv_cache_update(
        self, _: Any, key: torch.Tensor, value: torch.Tensor, cache: Any, slots: torch.Tensor
    ) -> None:
        """Write ``key`` and ``value`` [T, heads, size] to ``slots`` int32 [groups, T]."""
        self.layer.impl.do_kv_cache_update(self.layer, key, value, cache, slots[self.table])


class ProposingBlocks(Proposing):
    """Mixin before vllm-ascend's dflash proposer."""

    max_query_tokens: int
    _context_positions_buffer: torch.Tensor
    _dflash_hidden_states: torch.Tensor

    def load_model(self, model: Any) -> None:
        """Load the draft.

        Raises:
            NotImplementedError: it has layers, or the engine options, that cannot be served.
        """
        if lmhead_tp_enable() or get_ascend_config().enable_reduce_sample:
            raise NotImplementedError(
                "method dflash with lmhead_tensor_parallel_size or enable_reduce_sample: its "
                "proposal samples from the whole vocabulary on each rank. Leave these options out."
            )
        if enable_sp(self.vllm_config):
            raise NotImplementedError(
                "method dflash with sequence parallelism (flashcomm): its context is written by "
                "each rank from the hidden states of all tokens. Leave that option out."
            )
        super().load_model(model)
        refuse_windows(
            {
                name: layer.get_kv_cache_spec(self.vllm_config)
                for name, layer in self._draft_layers().items()
            }
        )

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort the draft's layers into groups; make what is the same for all proposals."""
        super().initialize_attn_backend(kv_cache_config)
        self._sequence_positions = self._context_positions_buffer
        inner = self.model.model
        if not hasattr(inner, "_num_attn_layers"):
            inner._build_fused_kv_buffers()
        inner._attn_layers = [
            LayerInGroup(_layer_itself(layer), table_of(layer, self.draft_groups))
            for layer in inner._attn_layers
        ]
        size, requests = 1 + self.num_speculative_tokens, self.max_batch_size
        rows, device = requests * size, self.device
        self._block_ids = torch.full(
            (rows,), self.parallel_drafting_token_id, dtype=torch.int32, device=device
        )
        groups = len(self.draft_groups.kv_groups)
        self._block_slots = torch.zeros(groups * rows, dtype=torch.int32, device=device)
        every = torch.arange(rows, dtype=torch.int32, device=device)
        # The first K * requests of these are right for any number of requests.
        self._sampled_rows = every.view(requests, size)[:, 1:].flatten()
        self._block_starts = torch.arange(requests + 1, dtype=torch.int32) * size
        self._block_starts_on_device = self._block_starts.to(device)

    def _sizes(self) -> Sizes:
        return Sizes(
            # Planned like steps: the positions of a block, which follow that of the last token.
            later_steps=1 + self.num_speculative_tokens,
            max_requests=self.max_batch_size,
            max_tokens=max(self.input_ids.shape[0], self.max_batch_size),
            max_model_len=min(self.max_model_len, self.draft_model_config.max_model_len),
            # Row by row the context is that of a head on hidden states, its tokens apart.
            shift=True,
        )

    def describe(self) -> str:
        """What a proposal of this draft takes, in one sentence or two."""
        return (
            f"The draft reads {len(self.draft_groups.kv_groups)} KV groups "
            f"({self.draft_groups.describe()}). A proposal builds attention metadata "
            f"{len(self.metadata.needs)} times. {self.how_it_runs()}"
        )

    def _propose(
        self,
        target_token_ids: torch.Tensor,
        target_positions: torch.Tensor,
        target_hidden_states: torch.Tensor,
        next_token_ids: torch.Tensor,
        token_indices_to_sample: torch.Tensor | None,
        common_attn_metadata: Any,
        target_model_batch_desc: Any,
        sampling_metadata: Any,
        mm_embed_inputs: Any = None,
        num_rejected_tokens_gpu: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Draft K tokens for each of B requests; arguments and result as in ``Proposing``."""
        requests, tokens = next_token_ids.shape[0], target_token_ids.shape[0]
        self._set_first_pass(
            target_token_ids,
            target_positions,
            next_token_ids,
            common_attn_metadata,
            num_rejected_tokens_gpu,
        )
        steps = self.draft_plan.plan_steps(requests, requests)
        steps.host_lengths.copy_(steps.all_lengths, non_blocking=True)
        self._lengths_copied.record()
        rows = requests * (1 + self.num_speculative_tokens)
        self._set_block_ids(next_token_ids)
        slots = self._set_block(steps, rows)
        input_rows, rows_across_ranks, _mode = self.runner._sync_metadata_across_dp(
            rows, is_draft_model=True
        )
        with self._forward_context(None, rows, input_rows, rows_across_ranks):
            self.model.precompute_and_store_context_kv(
                self.model.combine_hidden_states(target_hidden_states),
                self._context_positions_buffer[:tokens],
                self.draft_plan.first_slots[:, :tokens],
            )
            self._lengths_copied.synchronize()
            common = self._common_of_block(common_attn_metadata, steps, requests, input_rows)
            get_forward_context().attn_metadata = self.metadata.first_pass(
                common, slots, steps.tables
            )
            return self._drafted(requests, input_rows)

    def _drafted(self, requests: int, input_rows: int) -> torch.Tensor:
        """The pass over the block; int64 [requests, K]."""
        states = self.model(
            input_ids=self._block_ids[:input_rows],
            positions=self.positions[:input_rows],
            inputs_embeds=None,
        )
        drafted = requests * self.num_speculative_tokens
        sampled = self._sampled(states, self._sampled_rows[:drafted])
        return sampled.view(requests, self.num_speculative_tokens)

    def _set_block_ids(self, next_token_ids: torch.Tensor) -> None:
        """The first token of each request's block is what the target sampled, int64 [requests]."""
        requests, size = next_token_ids.shape[0], 1 + self.num_speculative_tokens
        self._block_ids[: requests * size].view(requests, size)[:, 0] = next_token_ids

    def _set_block(self, steps: LaterSteps, rows: int) -> tuple[torch.Tensor, ...]:
        """Write the pass's positions and slots. Returns its slots per group, int32 [rows]."""
        size, groups = 1 + self.num_speculative_tokens, steps.all_slots.shape[1]
        requests = rows // size
        self.positions[:rows].view(requests, size).copy_(steps.all_positions.T)
        slots = self._block_slots[: groups * rows]
        slots.view(groups, requests, size).copy_(steps.all_slots.permute(1, 2, 0))
        return tuple(slots.view(groups, rows))

    def _common_of_block(
        self, target: Any, steps: LaterSteps, requests: int, input_rows: int
    ) -> Any:
        """Common metadata of the pass over the block, from that of the target's."""
        size = 1 + self.num_speculative_tokens
        common = shallow_copy(target)
        common.num_reqs, common.num_actual_tokens = requests, requests * size
        common.num_input_tokens = input_rows
        common.query_start_loc = self._block_starts_on_device[: requests + 1]
        common.query_start_loc_cpu = self._block_starts[: requests + 1]
        common.max_query_len = common.decode_token_per_req = size
        common.positions = self.positions[: requests * size]
        # Past the end of a sequence the plan says 1: the block then has fewer keys.
        lengths = steps.host_lengths.amax(dim=0)
        common.seq_lens = common.seq_lens_cpu = common._seq_lens_cpu = lengths
        common.seq_lens_cpu_upper_bound = lengths
        common.graph_pad_size = -1
        common.causal, common.attn_mask = False, None
        common.attn_state = AscendAttentionState.ChunkedPrefill
        return common

    @torch.inference_mode()
    def dummy_run(
        self,
        num_tokens: int,
        num_reqs: int = 0,
        num_tokens_across_dp: torch.Tensor | None = None,
        is_profile: bool = False,
        **_: Any,
    ) -> None:
        """Run the draft for the profile, or in step with other ranks; no cache is written."""
        rows = min(num_tokens, self.max_query_tokens)
        rows, across_ranks, _mode = self.runner._sync_metadata_across_dp(rows, is_draft_model=True)
        ids = self.input_ids.new_zeros(rows)
        with set_ascend_forward_context(
            None,
            self.vllm_config,
            num_tokens=rows,
            num_tokens_across_dp=across_ranks,
            num_actual_tokens=rows,
            in_profile_run=is_profile,
            is_draft_model=True,
        ):
            if is_profile:
                self.model.precompute_and_store_context_kv(
                    self._dflash_hidden_states, self._context_positions_buffer
                )
            self.model(input_ids=ids, positions=self.positions[:rows], inputs_embeds=None)


def _layer_itself(layer: Any) -> Any:
    return layer.layer if isinstance(layer, LayerInGroup) else layer


def table_of(layer: Any, groups: DraftGroups) -> int:
    """Which of the draft's KV groups holds this attention layer."""
    name = _layer_itself(layer).layer_name
    return next(group.table for group in groups.groups if name in group.layer_names)


def refuse_windows(specs: Mapping[str, Any]) -> None:
    """Refuse layers that see part of the context.

    Raises:
        NotImplementedError: a layer's spec is not that of full attention.
    """
    for name, spec in specs.items():
        if isinstance(spec, FullAttentionSpec) and spec.sliding_window is None:
            continue
        raise NotImplementedError(
            f"the draft's layer {name} has a cache of {type(spec).__name__}, and method dflash "
            "attends without a causal mask: vllm-ascend 0.23.0 calls its operator without a window "
            "then, so keys that the layer must not see would be read, in blocks that may be "
            "freed. Choose a draft of method dflash whose layers attend to all tokens."
        )
