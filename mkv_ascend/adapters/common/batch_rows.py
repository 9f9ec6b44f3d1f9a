# SPDX-License-Identifier: Apache-2.0
"""Rows of a batch: what verifies drafts, sits out a step, goes back on earlier stages, or pads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mkv_ascend.adapters.common.patches.recurrent import build_of_padded_rows
from mkv_ascend.drafting.stages import StepOfRequest

# Rows of a batch whose recurrent states stand where a verification of drafts left them.
#
# While ``K`` drafts are verified, a gated delta net writes a state after each of ``1 + K``
# tokens, into as many columns of the request's block table. The next step goes on from the column
# of the last accepted one. vllm-ascend names only rows with drafts to its builder.


def verifying_rows(
    drafts: np.ndarray, accepted: np.ndarray, computed: np.ndarray, prompts: np.ndarray
) -> np.ndarray:
    """Number of drafts of each row that may go on from a column past 0; -1 for other rows.

    All are int ``[rows]``: ``drafts`` to verify (0 for none), tokens ``accepted`` by the last step
    with its own token, tokens ``computed``, and tokens of ``prompts``.
    """
    decoding = ~in_prompts(computed, prompts)
    found: np.ndarray = np.where(decoding & ((drafts > 0) | (accepted > 1)), drafts, -1)
    return found


def in_prompts(computed: np.ndarray, prompts: np.ndarray) -> np.ndarray:
    """Whether each row is a chunk of a prompt, from tokens computed and tokens of the prompt."""
    found: np.ndarray = computed < prompts
    return found


def name_rows(runner: Any, asked: dict[str, Any], least: int = 0) -> None:
    """Name rows that verified drafts but have none now, beside those that have.

    Args:
        runner: vllm-ascend's; its number of drafts of each row is changed.
        asked: arguments of its ``_build_attention_metadata``; changed if there are more rows.
        least: what a row without drafts is said to have.
    """
    if not (runner.speculative_config and runner.model_config.is_hybrid):
        return
    if asked.get("for_cudagraph_capture") or asked.get("num_scheduled_tokens") is None:
        return
    count, batch = asked["num_reqs"], runner.input_batch
    if not asked.get("use_spec_decode"):
        runner.num_decode_draft_tokens.np.fill(-1)
    drafts = runner.num_decode_draft_tokens.np[:count]
    found = verifying_rows(
        np.maximum(drafts, 0),
        runner.num_accepted_tokens.np[:count],
        batch.num_computed_tokens_cpu[:count],
        batch.num_prompt_tokens[:count],
    )
    drafts[:] = np.maximum(drafts, np.where(found < 0, -1, np.maximum(found, least)))
    asked["use_spec_decode"] = bool((drafts >= 0).any())


# Requests that sit out a step keep what was accepted of their drafts.
#
# A verification leaves a state after each of its tokens. The next step of a request starts from
# that after the last accepted token, so the runner keeps how many were accepted, by row of the
# batch. A request for which a step has no tokens left loses its row, and finds the number 1 when
# it is back: its states then end before tokens that were accepted.

ACCEPTED = build_of_padded_rows.record
"""Numbers are kept for the same purpose as rows are padded there."""


class SkippedRequests:
    """Accepted tokens of the last step of requests that have lost their rows."""

    def __init__(self) -> None:
        self._accepted: dict[str, int] = {}

    def note(self, runner: Any, step: Any) -> None:
        """Keep the numbers of requests that ``step``, a SchedulerOutput, leaves out.

        Called while the batch still has the rows of the last step. Waits for the device only if a
        request is left out.
        """
        gone = leaving(step)
        for request in gone:
            self._accepted.pop(request, None)
        if runner.num_accepted_tokens_event is None:  # a target without states
            return
        rows = runner.input_batch.req_id_to_index
        skipped = rows.keys() - step.num_scheduled_tokens.keys() - gone
        if not skipped:
            return
        runner.num_accepted_tokens_event.synchronize()
        of_batch = runner.input_batch.num_accepted_tokens_cpu
        accepted = runner.num_accepted_tokens.np if runner.use_async_scheduling else of_batch
        self._accepted.update((request, int(accepted[rows[request]])) for request in skipped)

    def restore(self, runner: Any) -> None:
        """Write the numbers of requests that are back into their new rows."""
        rows = runner.input_batch.req_id_to_index
        for request in self._accepted.keys() & rows.keys():
            number = self._accepted.pop(request)
            runner.num_accepted_tokens.np[rows[request]] = number
            runner.input_batch.num_accepted_tokens_cpu[rows[request]] = number


def leaving(step: Any) -> set[str]:
    """Requests whose states ``step``, a SchedulerOutput, says are lost or begun anew."""
    resumed = step.scheduled_cached_reqs.resumed_req_ids
    return {*step.finished_req_ids, *(step.preempted_req_ids or ()), *resumed}


# Recurrent states of pipeline stages before the last one go back to the last accepted token.
#
# A verification leaves a state after each of its tokens. The last stage samples, and knows at
# once after which of them a request goes on. A stage before it is told with the request's next
# step: the scheduler has taken rejected tokens off those that are computed.
#
# Where states at the ends of blocks are kept for prefix hits, one that a verification has reached
# is copied to its block then, too. No other request can find it before: the scheduler gives a
# block its hash with that same step, and lets no request of the same step read it.


class StatesOfEarlierStage:
    """What a stage before the last one knows of its requests' last steps.

    It stands in for ``SkippedRequests``: requests that sit out a step are told with their next one.
    """

    def __init__(self) -> None:
        self._steps: dict[str, StepOfRequest] = {}
        self._before: dict[str, StepOfRequest] = {}
        self._accepted: dict[str, int] = {}

    def note(self, runner: Any, step: Any) -> None:
        """Find what was accepted of the last steps of requests that ``step`` goes on with.

        Called before the runner takes the SchedulerOutput in.
        """
        for request in leaving(step):
            self._steps.pop(request, None)
        if not runner.model_config.is_hybrid:
            return
        cached = step.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self._before = {name: self._steps[name] for name in computed if name in self._steps}
        self._accepted = {
            name: last.accepted(computed[name]) for name, last in self._before.items()
        }
        computed.update((new.req_id, new.num_computed_tokens) for new in step.scheduled_new_reqs)
        drafts = step.scheduled_spec_decode_tokens
        for name, tokens in step.num_scheduled_tokens.items():
            self._steps[name] = StepOfRequest(computed[name], tokens, len(drafts.get(name, ())))

    def restore(self, runner: Any) -> None:
        """Write the numbers into the rows of their requests, and copy states at ends of blocks."""
        rows, batch = runner.input_batch.req_id_to_index, runner.input_batch
        for request, accepted in self._accepted.items():
            batch.num_accepted_tokens_cpu[rows[request]] = accepted
        if runner.cache_config.mamba_cache_mode == "align" and self._end_of_block(runner):
            self._copy(runner)
        count = batch.num_reqs
        runner.num_accepted_tokens.np[:count] = batch.num_accepted_tokens_cpu[:count]

    def _end_of_block(self, runner: Any) -> bool:
        """Whether a verification has reached the end of a block."""
        size = runner._get_mamba_bufs().postprocess_align.block_size
        return any(
            last.ends_block(self._accepted[name], size) for name, last in self._before.items()
        )

    def _copy(self, runner: Any) -> None:
        """Run what vLLM runs behind each step of the last stage, for the requests' last steps.

        Their numbers come from pageable memory: the host's own buffers are written once more before
        the device may have read them.
        """
        batch, inputs = runner.input_batch, runner._get_mamba_bufs().postprocess_align
        count = batch.num_reqs
        # Requests without a last step: one token of a block, whose end it does not reach.
        steps = [self._before.get(name, StepOfRequest(0, 1, 0)) for name in batch.req_ids]
        columns = [
            runner.mamba_state_idx[name] if name in self._before else 0 for name in batch.req_ids
        ]
        for buffer, values in (
            (inputs.mamba_state_idx_buf, columns),
            (inputs.num_scheduled_tokens_buf, [step.scheduled for step in steps]),
            (inputs.num_computed_tokens_buf, [step.computed for step in steps]),
            (inputs.num_draft_tokens_buf, [step.drafts for step in steps]),
        ):
            buffer.gpu[:count].copy_(torch.tensor(values, dtype=buffer.gpu.dtype))
        accepted = torch.from_numpy(batch.num_accepted_tokens_cpu[:count].copy())
        columns_of = torch.arange(1 + runner.num_spec_tokens)
        sampled = torch.where(columns_of < accepted[:, None], 0, -1).to(runner.device)
        runner._update_states_after_model_execute(sampled, None)
        runner.num_accepted_tokens_event.synchronize()


# Tokens that fill a batch up: for ranks that share its tokens out, or to the size of a graph.
#
# Attention writes no output for tokens of no request: that memory holds whatever was there. Ranks
# that share experts multiply such rows by 0 when they add up what experts said of others, and NaN
# stays NaN. So a request of padding stands for these tokens. vllm-ascend adds one, too, where it
# launches attention from a graph. Not where attention runs between pieces of graphs: there the
# memory is a pool's, and what lay in it were row indices of experts, -1 for those of other ranks,
# which reads as NaN. And 0.30.0rc2 asks whether ranks share tokens out where no configuration is
# set, so that the answer is always no.


def cover_padding(runner: Any, asked: dict[str, Any]) -> None:
    """Add a request for tokens of padding that none of the batch has.

    Args:
        runner: vllm-ascend's; its starts of queries are changed.
        asked: arguments of its ``_build_attention_metadata``; changed if there are such tokens.
    """
    if asked.get("for_cudagraph_capture") or runner.model_config.use_mla:
        return
    from vllm_ascend.utils import enable_sp

    if not enable_sp(runner.vllm_config):
        return
    count = asked["num_reqs"]
    tokens = asked.get("num_tokens_padded") or asked["num_tokens"]
    requests = asked.get("num_reqs_padded") or count
    starts = runner.query_start_loc
    if starts.np[requests] < tokens:
        asked["num_reqs_padded"] = runner._pad_query_start_loc_for_fia(
            starts, tokens, requests, count
        )


def cover_rows(config: Any, metadata: Any, rows: int) -> Any:
    """What layers attend by, with requests of padding for rows that none of the batch has.

    Only dense layers leave such rows unwritten. ``build`` of vllm-ascend fills lengths and tables
    up in the same way, where the runner has counted such a request.

    Args:
        config: vLLM's.
        metadata: by layer; as it is where ranks share no experts, or a batch runs in parts.
        rows: of the pass.
    """
    parallel = config.parallel_config
    shares = parallel.decode_context_parallel_size * parallel.prefill_context_parallel_size > 1
    if not parallel.enable_expert_parallel or shares or not isinstance(metadata, Mapping):
        return metadata
    from vllm_ascend.attention.attention_v1 import AscendMetadata

    # Layers share metadata, and keep sharing it.
    covered = {
        id(one): _covered(one, rows) for one in metadata.values() if isinstance(one, AscendMetadata)
    }
    return {name: covered.get(id(one), one) for name, one in metadata.items()}


def _covered(metadata: Any, rows: int) -> Any:
    ends = metadata.actual_seq_lengths_q
    if not ends or ends[-1] >= rows:
        return metadata
    # A decode has one token for each request, and some operators count on that.
    decodes = metadata.attn_state.name == "DecodeOnly"
    added = list(range(ends[-1] + 1, rows + 1)) if decodes else [rows]
    count, lengths, tables = len(added), metadata.seq_lens, metadata.block_tables
    return replace(
        metadata,
        actual_seq_lengths_q=[*ends, *added],
        seq_lens_list=[*metadata.seq_lens_list, *[1] * count],
        seq_lens=torch.cat([lengths, lengths.new_ones(count)]),
        block_tables=torch.cat([tables, tables.new_zeros((count, tables.shape[1]))]),
    )
