# SPDX-License-Identifier: Apache-2.0
"""What our speculator is given: the target's output, and how many drafts the scheduler asks for."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

from mkv_ascend.adapters.patching import override, record
from mkv_ascend.drafting.counts import DraftCounts
from mkv_ascend.drafting.draft import TargetOutput

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm_ascend.worker.v2.input_batch import AscendInputBatch


# The output of the target's step, from what model runner V2 hands to a speculator.


@dataclass(frozen=True)
class Step:
    """What model runner V2 knows after the target's step of B requests and T tokens.

    Attributes:
        batch: the runner's own record of the step.
        hidden_states: [at least T, width].
        auxiliary_states: of each layer that a head listens to, [at least T, width]; None or empty
            without such a head.
        num_sampled, num_rejected: int32 [B].
        last_sampled: int64 [requests of the engine, 1], the token that each request sampled last.
        next_prompt_tokens: int32 [tokens ahead, requests of the engine], of chunked prompts.
        rope_positions: [axes, at least T], if the draft has several axes (M-RoPE).
        multimodal: the runner's embeddings of images and their places.
    """

    batch: AscendInputBatch
    hidden_states: torch.Tensor
    auxiliary_states: list[torch.Tensor] | None
    num_sampled: torch.Tensor
    num_rejected: torch.Tensor
    last_sampled: torch.Tensor
    next_prompt_tokens: torch.Tensor
    rope_positions: torch.Tensor | None = None
    multimodal: Any = None


def target_output(step: Step) -> TargetOutput:
    """Translate the runner's step for a proposal."""
    batch = step.batch
    requests, tokens = batch.num_reqs, batch.num_tokens
    lengths = torch.from_numpy(batch.seq_lens_np)[:requests]
    starts = torch.from_numpy(batch.query_start_loc_np[: requests + 1])
    longest = int(batch.num_scheduled_tokens[:requests].max())
    common = _common_metadata(batch, starts, lengths, longest)
    return TargetOutput(
        token_ids=batch.input_ids[:tokens],
        positions=batch.positions[:tokens],
        next_token_ids=_next_tokens(step),
        hidden_states=_hidden_states(step, tokens),
        num_rejected=step.num_rejected[:requests],
        query_start_loc=batch.query_start_loc[: requests + 1],
        query_start_loc_host=starts,
        host_lengths=lengths,
        length_bounds=batch.seq_lens_cpu_upper_bound[:requests],
        longest_row=longest,
        rope_positions=(None if step.rope_positions is None else step.rope_positions[:, :tokens]),
        multimodal=step.multimodal,
        common=common,
    )


def _next_tokens(step: Step) -> torch.Tensor:
    """The token behind each request's rows: sampled, or the prompt's own inside a prompt; [B]."""
    batch = step.batch
    sampled = step.last_sampled.view(-1).index_select(0, batch.idx_mapping)
    if not _ends_inside_a_prompt(batch):
        return sampled
    prompt = step.next_prompt_tokens[0].index_select(0, batch.idx_mapping)
    return torch.where(step.num_sampled > 0, sampled, prompt)


def _ends_inside_a_prompt(batch: AscendInputBatch) -> bool:
    """Whether any request has more of its prompt to compute; known on the host."""
    computed = batch.num_computed_tokens_np[: batch.num_reqs] + batch.num_scheduled_tokens
    return bool((computed < batch.prefill_len_np[: batch.num_reqs]).any())


def _hidden_states(step: Step, tokens: int) -> torch.Tensor:
    if step.auxiliary_states:
        return torch.cat([states[:tokens] for states in step.auxiliary_states], dim=-1)
    return step.hidden_states[:tokens]


def _common_metadata(
    batch: AscendInputBatch, starts: torch.Tensor, lengths: torch.Tensor, longest: int
) -> AscendCommonAttentionMetadata:
    """What metadata builders shared in the target's pass, but for block table and slots.

    Model runner V2 makes it anew for each KV group and keeps none. A pass of the draft puts its own
    rows in.
    """
    requests = batch.num_reqs
    return AscendCommonAttentionMetadata(
        query_start_loc=batch.query_start_loc[: requests + 1],
        query_start_loc_cpu=starts,
        seq_lens=batch.seq_lens[:requests],
        seq_lens_cpu=lengths,
        seq_lens_cpu_upper_bound=batch.seq_lens_cpu_upper_bound[:requests],
        num_reqs=requests,
        num_actual_tokens=batch.num_tokens,
        num_input_tokens=batch.num_tokens,
        max_query_len=longest,
        max_seq_len=int(lengths.max()),
        block_table_tensor=None,
        slot_mapping=None,
        positions=batch.positions[: batch.num_tokens],
        attn_state=batch.attn_state,
        is_prefilling=torch.from_numpy(batch.is_prefilling_np[:requests]),
    )


# The draft tokens that a scheduler is told of on model runner V2.
#
# With K by batch size (``num_speculative_tokens_per_batch_size``) the scheduler takes K from a
# table by the number of requests of a step, and with asynchronous scheduling it lets the next
# step verify so many. The runner is not told. It has the same table, and the same number of
# requests.
#
# An asynchronous scheduler asks for draft tokens where a grammar is to see them, before their
# verification is sampled. Over pipeline stages other steps have run since they were drafted.

SCHEDULED = record(
    name="draft tokens that a scheduler is told of",
    target=(
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.__init__",
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.set_draft_tokens",
        "vllm.v1.worker.gpu.spec_decode.utils:DraftTokensHandler.get_draft_tokens",
    ),
    reads=(
        "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids_in_output",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
        "vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
    ),
)


def counts_of(config: VllmConfig) -> DraftCounts | None:
    """K by batch size as the scheduler has it; None where K is the same for all."""
    speculative = config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return None
    return DraftCounts(
        build_dynamic_sd_schedule_lookup(
            speculative.num_speculative_tokens_per_batch_size,
            vllm_max_batch_size=config.scheduler_config.max_num_seqs,
            vllm_num_speculative_tokens=speculative.num_speculative_tokens,
        )
    )


class ScheduledDrafts(DraftTokensHandler):
    """Tells the scheduler of so many tokens as are drafted for a batch of its size.

    Args:
        counts: K by batch size; None: the same for all.
        running: names of the requests that the runner has and may be asked for when other steps
            have run.
    """

    @override(SCHEDULED)
    def __init__(
        self, device: torch.device, counts: DraftCounts | None, running: Container[str]
    ) -> None:
        super().__init__(device)
        self._counts, self._running = counts, running
        self._latest: dict[str, Any] = {}

    @override(SCHEDULED)
    def set_draft_tokens(self, input_batch: Any, draft_tokens: torch.Tensor) -> None:
        """Keep the first K of the draft tokens, [B, largest K]; those of other requests stay."""
        if self._counts is not None:
            draft_tokens = draft_tokens[:, : self._counts.by_requests[input_batch.num_reqs]]
        super().set_draft_tokens(input_batch, draft_tokens)
        current = set(self.req_ids)
        self._latest = {
            name: row
            for name, row in self._latest.items()
            if name in self._running and name not in current
        }
        if self.draft_tokens_np is not None:
            self._latest.update(zip(self.req_ids, self.draft_tokens_np, strict=True))

    @override(SCHEDULED)
    def get_draft_tokens(self) -> DraftTokenIds | None:
        """Of the last step, and what was drafted last for requests that were not in it."""
        told: DraftTokenIds | None = super().get_draft_tokens()
        others = self._latest.keys() - set(self.req_ids)
        if told is None or not others:
            return told
        self.copy_event.synchronize()
        return DraftTokenIds(
            [*told.req_ids, *others],
            [*told.draft_token_ids, *(self._latest[name].tolist() for name in others)],
        )
