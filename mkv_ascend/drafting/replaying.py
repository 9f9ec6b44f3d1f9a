# SPDX-License-Identifier: Apache-2.0
"""Mixin: proposals of verify steps are replayed from graphs."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import CUDAGraphMode
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

from mkv_ascend.drafting.graphs import DraftGraphs, why_not_captured
from mkv_ascend.drafting.plan import LaterSteps
from mkv_ascend.drafting.proposing import READ_AUXILIARY_STATES, Proposing, host_lengths
from mkv_ascend.drafting.steps import Passes


class Replaying(Proposing):
    """Mixin before a proposer of vllm-ascend: its passes are captured where the target's are.

    ``asked_to_run_eagerly``: whether ``speculative_config`` says ``enforce_eager``.
    """

    graphs: DraftGraphs | None = None
    asked_to_run_eagerly = False
    _why_eager: str | None = None
    _states_to_join: torch.Tensor | None = None

    def load_model(self, model: Any) -> None:
        """Load the draft, and make the largest buffer of its graphs.

        Here, because memory that is taken now is left out when the KV cache is sized.
        """
        super().load_model(model)
        config, width = self.runner.compilation_config, self._width_of_states_to_join()
        if width is None or self.asked_to_run_eagerly:
            return
        if config.cudagraph_mode.has_full_cudagraphs():
            rows = self.max_batch_size * (self.num_speculative_tokens + 1)
            shape = (min(rows, config.max_cudagraph_capture_size), width)
            self._states_to_join = self.hidden_states.new_zeros(shape)

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort the draft's layers into groups, and see whether their passes can be captured."""
        super().initialize_attn_backend(kv_cache_config)
        self._why_eager = why_not_captured(self)
        self.graphs = None if self._why_eager else DraftGraphs(self)
        if self.graphs is None:
            self._states_to_join = None

    def _width_of_states_to_join(self) -> int | None:
        """Of the target's states that the draft joins, one row; None: it takes them as they are.

        They are joined in the graph then, from a buffer of their own.
        """
        if self.method not in READ_AUXILIARY_STATES or self.parallel_drafting:
            return None
        joining = getattr(self.model.model, "fc", None)
        return getattr(joining, "input_size", None)

    def how_it_runs(self) -> str:
        """For the log: from graphs, or eagerly, and why, where the target is not."""
        if not self.runner._use_aclgraph():
            return "The draft runs eagerly."
        if self._why_eager:
            return (
                "The draft runs eagerly, though the target is replayed from graphs: "
                f"{self._why_eager}."
            )
        return "Where all requests verify drafts, its passes are replayed from one graph."

    def dummy_run(
        self,
        num_tokens: int,
        *args: Any,
        aclgraph_runtime_mode: CUDAGraphMode = CUDAGraphMode.NONE,
        **options: Any,
    ) -> None:
        """As vllm-ascend's; captures where the target was captured for verify steps just now."""
        super().dummy_run(  # type: ignore[misc]
            num_tokens, *args, aclgraph_runtime_mode=aclgraph_runtime_mode, **options
        )
        requests, rest = divmod(num_tokens, self.num_speculative_tokens + 1)
        if self.graphs is None or aclgraph_runtime_mode != CUDAGraphMode.FULL or rest:
            return
        if requests <= self.max_batch_size and requests not in self.graphs.captured:
            self.graphs.capture(requests)

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
        **options: Any,
    ) -> torch.Tensor:
        """By a graph where there is one for the batch; see ``Proposing``."""
        requests, common = next_token_ids.shape[0], common_attn_metadata
        passes = None if self.graphs is None else self.graphs.for_batch(common, requests)
        if passes is None or self.graphs is None:
            return super()._propose(
                target_token_ids,
                target_positions,
                target_hidden_states,
                next_token_ids,
                token_indices_to_sample,
                common,
                target_model_batch_desc,
                sampling_metadata,
                mm_embed_inputs,
                num_rejected_tokens_gpu=num_rejected_tokens_gpu,
                **options,
            )
        rows = self._set_first_pass(
            target_token_ids,
            target_positions,
            next_token_ids,
            common,
            num_rejected_tokens_gpu,
            passes.rows,
        )
        if self._states_to_join is not None:
            self._states_to_join[: target_hidden_states.shape[0]] = target_hidden_states
        elif self.pass_hidden_states_to_model:
            self._set_hidden_states(target_hidden_states, rows)
        self.before_replay(requests, next_token_ids, num_rejected_tokens_gpu)
        lengths = host_lengths(common)[:requests] + self.net_num_new_slots_per_request
        return self.graphs.replay(passes, requests, lengths.tolist())

    def may_replay(self, common: Any, requests: int) -> bool:
        """Whether a batch of verify steps, by the shape of its rows, may be replayed."""
        return True

    def before_replay(
        self, requests: int, next_token_ids: torch.Tensor, num_rejected: torch.Tensor | None
    ) -> None:
        """Bring into buffers what ``_set_first_pass`` does not."""

    def made_again(self, passes: Passes) -> Passes:
        """Launch what makes metadata that depends on the proposal, at the head of a graph."""
        if passes.rotary is not None:
            passes.rotary.take_again()
        return passes

    def lengths_of_passes(self, first: list[int], steps: LaterSteps) -> list[list[int]]:
        """Lengths of each request in each pass; those of later passes are on the host now."""
        later: list[list[int]] = steps.host_lengths.tolist()
        return [first, *later]

    def passes_to_capture(self, requests: int) -> tuple[int, Passes]:
        """Rows of the first pass and the plan of all passes, after a made up verify step."""
        common = self._common_of_verify_step(requests)
        tokens = common.num_actual_tokens
        rows = self._set_first_pass(
            torch.zeros(tokens, dtype=torch.int32, device=self.device),
            self.runner.positions[:tokens],
            torch.zeros(requests, dtype=torch.int32, device=self.device),
            common,
            None,
        )
        first = self._common_of_first_pass(common, requests, rows, rows)
        # The graph's own. Rows of all its verify steps begin there, those of padding, too; in the
        # plan's buffer padding has what an earlier batch left, which may be long, or fall.
        first.query_start_loc = first.query_start_loc.clone()
        return rows, self._plan_passes(first, requests, rows, rows)

    def _common_of_verify_step(self, requests: int) -> AscendCommonAttentionMetadata:
        each = self.num_speculative_tokens + 1
        starts = self._count[: requests + 1] * each
        # With as many tokens before the step: it begins no request.
        lengths = torch.full((requests,), 2 * each, dtype=torch.int32)
        tables = self.runner.input_batch.block_table[self.draft_groups.kv_groups[0]]
        return AscendCommonAttentionMetadata(
            query_start_loc=starts.to(self.device),
            query_start_loc_cpu=starts,
            seq_lens=lengths.to(self.device),
            seq_lens_cpu=lengths,
            _seq_lens_cpu=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=requests,
            num_actual_tokens=requests * each,
            num_input_tokens=requests * each,
            max_query_len=each,
            max_seq_len=2 * each,
            block_table_tensor=tables.get_device_tensor()[:requests],
            slot_mapping=self.draft_plan.first_slots[0],
            positions=self.runner.positions,
            attn_state=AscendAttentionState.ChunkedPrefill,
            decode_token_per_req=each,
            is_prefilling=torch.zeros(requests, dtype=torch.bool),
        )

    def run_passes(self, passes: Passes, rows: int, requests: int) -> torch.Tensor:
        """Run the draft; int64 [requests, K].

        Args:
            rows: of the first pass, as many for each request.
        """
        # Of requests that are not there, rows of an earlier batch: some row must be read.
        sampled = requests * self.draft_plan.sizes.sampled_per_request
        self.token_indices_to_sample[:sampled].clamp_(max=rows - 1)
        if self._states_to_join is not None:
            self._set_hidden_states(self._states_to_join[:rows], rows)
        return self._run_merged_draft(
            num_input_tokens=rows,
            batch_size=requests,
            token_indices_to_sample=self.token_indices_to_sample[:sampled],
            target_positions=self.positions,
            inputs_embeds=None,
            multi_steps_attn_metadata=passes,
            num_tokens=rows,
        )

    def copy_lengths(self, steps: LaterSteps) -> None:
        """Begin to copy the lengths of later passes to the host."""
        steps.host_lengths.copy_(steps.all_lengths, non_blocking=True)
        self._lengths_copied.record()

    def wait_for_lengths(self) -> None:
        """Until they are there. Then the replay before this one is over, too."""
        self._lengths_copied.synchronize()
