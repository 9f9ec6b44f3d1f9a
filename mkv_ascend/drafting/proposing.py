# SPDX-License-Identifier: Apache-2.0
"""A proposal of a draft whose layers lie in any number of KV groups.

Mixin over vllm-ascend's proposers, whose ``_propose`` knows one group: one metadata object for all
layers, one buffer of slots, and positions and slots computed anew for each step. Here a proposal
is: one launch for the inputs and slots of the first pass, one for positions, lengths and slots of
all later steps, metadata once per distinct need, and then the passes.

Lengths of later steps are position + 1, on the device and on the host. Builders hand them to
operators as lists, and the host does not know how many tokens were rejected, so they are copied to
the host before the first pass is launched and waited for after it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch_npu
from vllm.forward_context import get_forward_context
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.grouped import Grouped
from mkv_ascend.drafting.metadata import Metadata
from mkv_ascend.drafting.plan import DraftPlan, FirstPassInputs, LaterSteps, Sizes
from mkv_ascend.drafting.steps import DraftSteps, Passes

MOST_QUERIES_OF_A_DECODE = 16
"""Of npu_fused_infer_attention_score for MLA in the TND layout (its documentation; mla_v1.py)."""

READ_AUXILIARY_STATES = ("eagle3",)
"""Methods whose draft takes the target's hidden states of several layers, joined by the draft."""


class Proposing(DraftSteps, Grouped):
    """Mixin before a proposer of vllm-ascend: drafts over any number of KV groups."""

    draft_plan: DraftPlan
    method: str
    input_ids: torch.Tensor
    hidden_states: torch.Tensor
    positions: torch.Tensor
    mrope_positions: torch.Tensor
    token_indices_to_sample: torch.Tensor
    arange: torch.Tensor
    uses_mrope: bool
    use_cuda_graph: bool
    max_batch_size: int
    max_model_len: int
    draft_model_config: Any
    extra_slots_per_request: int
    net_num_new_slots_per_request: int
    parallel_drafting_token_id: int
    parallel_drafting_hidden_state_tensor: torch.Tensor | None
    _runnable: Callable[..., Any]

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort the draft's layers into groups; make their builders and the plan's buffers."""
        super().initialize_attn_backend(kv_cache_config)
        for group in self.draft_attn_groups:
            widen_decodes(group.get_metadata_builder(), self.net_num_new_slots_per_request)
        tables, sizes = self.runner.input_batch.block_table, self._sizes()
        self.draft_plan = DraftPlan(
            sizes,
            [tables[kv_group].get_device_tensor() for kv_group in self.draft_groups.kv_groups],
            self.draft_groups.block_sizes,
        )
        self._sequence_positions = (
            torch.zeros_like(self.input_ids) if self.uses_mrope else self.positions
        )
        self._lengths_copied = torch_npu.npu.Event()
        self._count = torch.arange(sizes.max_requests + 1, dtype=torch.int32)

    def describe(self) -> str:
        """What a proposal of this draft takes, in one sentence or two."""
        builds = self.metadata.builds_per_proposal(self.draft_plan.sizes.later_steps)
        return (
            f"The draft reads {len(self.draft_groups.kv_groups)} KV groups "
            f"({self.draft_groups.describe()}). A proposal builds attention metadata "
            f"{builds} times. {self.how_it_runs()}"
        )

    def _sizes(self) -> Sizes:
        parallel = self.parallel_drafting
        return Sizes(
            later_steps=0 if parallel else self.num_speculative_tokens - 1,
            max_requests=self.max_batch_size,
            max_tokens=self.input_ids.shape[0],
            # Longer sequences go on without drafts worth anything, but read no rotary row that the
            # draft does not have.
            max_model_len=min(self.max_model_len, self.draft_model_config.max_model_len),
            sampled_per_request=self.extra_slots_per_request,
            shift=self.pass_hidden_states_to_model,
            parallel_token_id=self.parallel_drafting_token_id,
            # DeepSeek-V4's blocks hold states in float32 and keys in bfloat16 in turn.
            writes_rejected=self.runner.use_compress,
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
        """Draft K tokens for each of B requests; the name and the arguments are vllm-ascend's.

        Args:
            target_token_ids: int32 [T], what the target was given, or of it what was accepted.
            target_positions: [T] (M-RoPE: [3, T]).
            target_hidden_states: [T, width]; read by heads on hidden states.
            next_token_ids: [B], what the target sampled last.
            token_indices_to_sample: not read: it follows from the rejected tokens.
            common_attn_metadata: of the target's pass, in any KV group.
            num_rejected_tokens_gpu: [B], tokens of each request that were rejected; None: none.

        Returns:
            int64 [B, K].
        """
        requests = next_token_ids.shape[0]
        rows = self._set_first_pass(
            target_token_ids,
            target_positions,
            next_token_ids,
            common_attn_metadata,
            num_rejected_tokens_gpu,
        )
        if self.pass_hidden_states_to_model:
            self._set_hidden_states(target_hidden_states, rows)
        embeds = self._embedded(rows, mm_embed_inputs)
        input_rows, rows_across_ranks, _mode = self.runner._sync_metadata_across_dp(
            rows, is_draft_model=True
        )
        common = self._common_of_first_pass(common_attn_metadata, requests, rows, input_rows)
        passes = self._plan_passes(common, requests, rows, input_rows)
        with self._forward_context(passes.first, rows, input_rows, rows_across_ranks):
            sampled = requests * self.draft_plan.sizes.sampled_per_request
            drafted: torch.Tensor = self._runnable(
                num_input_tokens=input_rows,
                batch_size=requests,
                token_indices_to_sample=self.token_indices_to_sample[:sampled],
                target_positions=target_positions,
                inputs_embeds=None if embeds is None else embeds[:input_rows],
                multi_steps_attn_metadata=passes,
                num_tokens=rows,
            )
        return drafted

    @contextlib.contextmanager
    def _forward_context(
        self,
        first: Metadata | None,
        rows: int,
        input_rows: int,
        rows_across_ranks: torch.Tensor | None,
    ) -> Iterator[None]:
        """The forward context in which the draft's passes run, with metadata of the first."""
        runner = self.runner
        heat = runner.eplb_heat_collection_status if runner.dynamic_eplb else False
        with set_ascend_forward_context(
            first,
            self.vllm_config,
            num_tokens=input_rows,
            num_tokens_across_dp=rows_across_ranks,
            num_actual_tokens=rows,
            is_draft_model=True,
            eplb_heat_collection_status=heat,
        ):
            get_forward_context().moe_layer_index = 0
            yield

    def _set_first_pass(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        next_token_ids: torch.Tensor,
        common: Any,
        num_rejected: torch.Tensor | None,
        padded_rows: int = 0,
    ) -> int:
        """Write the first pass's inputs and slots. Returns its number of rows, with padding."""
        tokens = token_ids.shape[0]
        # M-RoPE positions are not those in the sequence, which slots and lengths follow.
        several = positions.dim() > 1
        return self.draft_plan.expand(
            FirstPassInputs(
                token_ids=token_ids,
                positions=common.positions[:tokens] if several else positions,
                next_token_ids=next_token_ids,
                query_start_loc=common.query_start_loc[: next_token_ids.shape[0] + 1],
                num_rejected=num_rejected,
                out_token_ids=self.input_ids,
                out_positions=self._sequence_positions,
                out_sample_indices=self.token_indices_to_sample,
                rope_positions=positions if self.uses_mrope else None,
                out_rope_positions=self.mrope_positions if self.uses_mrope else None,
            ),
            padded_rows,
        )

    def _set_hidden_states(self, states: torch.Tensor, rows: int) -> None:
        """The target's hidden states, in the rows of the first pass."""
        if self.method in READ_AUXILIARY_STATES:
            states = self.model.combine_hidden_states(states)
        states = states.view(states.shape[0], -1)
        if self.draft_plan.sizes.sampled_per_request == 1:
            self.hidden_states[: states.shape[0]] = states
            return
        plan, masked = self.draft_plan, self.parallel_drafting_hidden_state_tensor
        assert masked is not None
        out = self.hidden_states[:rows]
        out[plan.hidden_rows[: states.shape[0]]] = states
        torch.where(plan.masked_mask[:rows, None], masked, out, out=out)

    def _embedded(self, rows: int, multimodal: Any) -> torch.Tensor | None:
        """The buffer of embeddings, filled where the draft takes them instead of token ids."""
        if not self.supports_mm_inputs:
            return None
        embeddings, is_multimodal = multimodal or (None, None)
        self.inputs_embeds[:rows] = self.model.embed_input_ids(
            self.input_ids[:rows], multimodal_embeddings=embeddings, is_multimodal=is_multimodal
        )
        return self.inputs_embeds

    def _common_of_first_pass(self, target: Any, requests: int, rows: int, input_rows: int) -> Any:
        """Common metadata of the first pass, from that of the target's."""
        plan, more = self.draft_plan, self.net_num_new_slots_per_request
        common = shallow_copy(target)
        common.num_reqs = requests
        common.num_actual_tokens, common.num_input_tokens = rows, input_rows
        common.query_start_loc = plan.first_query_start_loc[: requests + 1]
        common.seq_lens = plan.first_lengths[:requests]
        common.positions = self._sequence_positions[:rows]
        common.query_start_loc_cpu = target.query_start_loc_cpu[: requests + 1]
        if more:
            starts = common.query_start_loc_cpu
            common.query_start_loc_cpu = starts + more * self._count[: requests + 1]
            common.max_query_len = target.max_query_len + more
            if common.attn_state is AscendAttentionState.DecodeOnly:
                # A decode has one token; here it has the sampled one besides.
                common.attn_state = AscendAttentionState.ChunkedPrefill
        lengths = host_lengths(target)[:requests] + more
        common._seq_lens_cpu = common.seq_lens_cpu = common.seq_lens_cpu_upper_bound = lengths
        if self.parallel_drafting:
            # vllm-ascend's builder reads these on the host then, whatever device they are on.
            common.seq_lens = lengths
        return common

    def _plan_passes(self, common: Any, requests: int, rows: int, input_rows: int) -> Passes:
        """Plan all passes; the metadata of the later ones is made when it is asked for."""
        plan = self.draft_plan
        slots, tables = plan.slots(rows), plan.tables(requests)
        if not plan.sizes.later_steps:
            first = self.metadata.first_pass(common, slots, tables)
            return Passes(first, (), list, self.metadata.rotary)
        later_rows = self.later_rows(input_rows, requests)
        steps = plan.plan_steps(later_rows, requests)
        steps.host_lengths.copy_(steps.all_lengths, non_blocking=True)
        self._lengths_copied.record()
        first = self.metadata.first_pass(common, slots, tables, steps)
        positions = steps.positions
        if self.uses_mrope:
            positions = self._rope_positions(steps, requests)
        later = self._later(common, steps, requests, later_rows)
        return Passes(first, positions, later, self.metadata.rotary)

    def _later(
        self, first: Any, steps: LaterSteps, requests: int, rows: int
    ) -> Callable[[], list[Metadata]]:
        def made() -> list[Metadata]:
            common = self._common_of_later_steps(first, steps, requests, rows)
            later = self.metadata.later_steps(common, steps)
            self._lengths_copied.synchronize()
            return later.with_lengths(steps.host_lengths[:, :requests])

        return made

    def _common_of_later_steps(
        self, first: Any, steps: LaterSteps, requests: int, rows: int
    ) -> Any:
        """Common metadata of a pass with one token per request; its host lengths come later."""
        starts = self._count[: requests + 1]
        common = shallow_copy(first)
        common.num_actual_tokens, common.num_input_tokens = requests, rows
        common.query_start_loc = self.arange[: requests + 1]
        common.query_start_loc_cpu = starts
        common.max_query_len = common.decode_token_per_req = 1
        common.seq_lens, common.positions = steps.lengths[0], steps.request_positions[0]
        common._seq_lens_cpu = common.seq_lens_cpu = common.seq_lens_cpu_upper_bound = starts[1:]
        common.graph_pad_size = -1
        common.attn_state = (
            AscendAttentionState.SpecDecoding
            if self.method == "mtp"
            else AscendAttentionState.ChunkedPrefill
        )
        return common

    def _rope_positions(self, steps: LaterSteps, requests: int) -> tuple[torch.Tensor, ...]:
        """M-RoPE positions of the later steps, [3, rows] each: on by one on every axis."""
        sampled = self.token_indices_to_sample[:requests]
        later = self.arange[1 : len(steps.positions) + 1]
        plan = self.draft_plan
        fits = plan.next_positions[:requests] + later[:, None] < plan.sizes.max_model_len
        moved = self.mrope_positions[:, sampled] + later[:, None, None]
        rows = steps.positions[0].shape[0]
        planned = moved.new_zeros((len(later), 3, rows))
        planned[:, :, :requests] = moved * fits[:, None]
        return tuple(planned)


def widen_decodes(builder: Any, more: int) -> None:
    """Let MLA take a verified row of the target for a decode in the draft, where it is longer.

    vllm-ascend counts K + 1 queries as a decode. A draft model's first pass has ``more`` besides,
    so each of its proposals would be a prefill with cached context, whose chunks are uploaded.
    """
    if isinstance(builder, AscendMLAMetadataBuilder):
        wide = builder.decode_threshold + more
        if wide <= MOST_QUERIES_OF_A_DECODE:
            builder.decode_threshold = wide


def host_lengths(common: Any) -> torch.Tensor:
    """Lengths of the target's pass on the host, which vllm-ascend keeps right for its builders."""
    lengths: torch.Tensor | None = common._seq_lens_cpu
    if lengths is None:
        lengths = common.seq_lens_cpu
    assert lengths is not None, "vllm-ascend hands over lengths on the host in every mode"
    return lengths
