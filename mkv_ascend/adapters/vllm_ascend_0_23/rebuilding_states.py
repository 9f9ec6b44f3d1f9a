# SPDX-License-Identifier: Apache-2.0
"""Recurrent drafts read what the target took from the prefix cache.

Their states at the end of a hit are nowhere, so the draft runs over the tokens of the hit, in
passes like the first one of a proposal, but without drafts and without sampling. A pass reads and
writes the cached blocks of its request: layers of attention find the keys before a chunk there, and
write the chunk's own again. That changes nothing for others who have these blocks, since keys
follow from the tokens before them alone (up to rounding, where chunks are cut elsewhere). They are
written all the same: blocks may be hit in the step that fills them, when the draft has not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.lost_states import Chunk, Lost, LostStates, rebuilding_passes
from mkv_ascend.drafting.plan import DraftPlan, FirstPassInputs
from mkv_ascend.drafting.recurrent import RecurrentProposing

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput


def note_requests(lost: LostStates, step: SchedulerOutput) -> None:
    """Tell ``lost`` which requests begin in this step, and which have ended."""
    cached = step.scheduled_cached_reqs
    begun = [(new.req_id, new.num_computed_tokens) for new in step.scheduled_new_reqs]
    begun += [
        (request, computed)
        for request, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
        if request in cached.resumed_req_ids
    ]
    lost.note(begun, step.finished_req_ids)


class Rebuilding:
    """Runs a draft over tokens of which it has no state.

    Attributes:
        passes, tokens: of the draft, so far.
    """

    def __init__(self, proposer: Any, most_tokens: int) -> None:
        """
        Args:
            proposer: with recurrent layers, whose groups are known and whose caches are bound.
            most_tokens: of a pass.

        Raises:
            NotImplementedError: an attention layer of the draft keeps no keys of a hit's beginning.
        """
        for group in proposer.draft_groups.groups:
            if not isinstance(group.spec, FullAttentionSpec):
                raise NotImplementedError(
                    f"prefix caching is on and the draft has recurrent layers and, in "
                    f"{group.layer_names[0]}, {type(group.spec).__name__}: of a prefix hit it has "
                    "no state, and reads the hit again; keys before a window are gone then. Give "
                    "--no-enable-prefix-caching, or choose a draft of full attention"
                )
        self.lost = LostStates()
        self.passes = self.tokens = 0
        self._proposer = proposer
        self._most_tokens = min(most_tokens, proposer.input_ids.shape[0])
        plan, states = proposer.draft_plan, proposer.states
        # Rows of these tables are the requests that are read, not those of the batch.
        self._plan = DraftPlan(
            replace(plan.sizes, later_steps=0),
            [torch.zeros_like(table) for table in plan.block_tables],
            proposer.draft_groups.block_sizes,
        )
        self._states = states.for_graph(states.groups, plan.sizes.max_requests)

    def describe(self) -> str:
        """For the log: what prefix hits cost."""
        return (
            "Prefix hits are the target's: the draft has no state at the end of one, so it reads "
            f"the tokens of the hit itself, in passes of at most {self._most_tokens} tokens, "
            "before its first proposal for the request."
        )

    def run(self, batch: Any, common: Any) -> None:
        """Rebuild the states of requests of this batch that have none; they are then as after the
        last token that the target had computed before this step.

        Args:
            batch: the runner's input batch.
            common: of the target's pass, whose rows are not read.
        """
        most = self._plan.sizes.max_model_len
        taken = self.lost.take(batch.req_id_to_index)
        lost = [Lost(found.row, min(found.tokens, most)) for found in taken]
        for chunks in rebuilding_passes(lost, self._most_tokens):
            self._run(chunks, batch.token_ids_cpu, common)

    def _run(self, chunks: Sequence[Chunk], token_ids: np.ndarray, common: Any) -> None:
        proposer, requests = self._proposer, len(chunks)
        rows = sum(chunk.end - chunk.start for chunk in chunks)
        self._take_tables([chunk.row for chunk in chunks])
        self._set_inputs(chunks, token_ids)
        input_rows, across_ranks, _ = proposer.runner._sync_metadata_across_dp(
            rows, is_draft_model=True
        )
        own = self._common(common, chunks, input_rows)
        plan = self._plan
        metadata = {
            **proposer.metadata.first_pass(own, plan.slots(rows), plan.tables(requests)),
            **self._states.catch_up(own, None),
        }
        with proposer._forward_context(metadata, rows, input_rows, across_ranks):
            proposer._forward(input_rows, proposer._get_positions(input_rows), None)
            self._states.settle(requests)
        self.passes += 1
        self.tokens += rows

    def _take_tables(self, rows: Sequence[int]) -> None:
        proposer = self._proposer
        index = torch.tensor(rows, dtype=torch.int64).to(proposer.device)
        of_plan = zip(self._plan.block_tables, proposer.draft_plan.block_tables, strict=True)
        for own, table in of_plan:
            own[: len(rows)] = table[index]
        self._states.take_rows(proposer.states, index)

    def _set_inputs(self, chunks: Sequence[Chunk], token_ids: np.ndarray) -> None:
        """Write the pass's inputs and slots, as for the first pass of a proposal."""
        proposer, device = self._proposer, self._proposer.device
        given = np.concatenate([token_ids[chunk.row, chunk.start : chunk.end] for chunk in chunks])
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        tokens = torch.from_numpy(given.astype(np.int32)).to(device)
        self._plan.expand(
            FirstPassInputs(
                token_ids=tokens,
                positions=torch.from_numpy(positions).to(proposer.positions.dtype).to(device),
                next_token_ids=torch.zeros(len(chunks), dtype=torch.int32, device=device),
                query_start_loc=_starts(chunks).to(device),
                num_rejected=None,
                out_token_ids=proposer.input_ids,
                out_positions=proposer.positions,
                out_sample_indices=proposer.token_indices_to_sample,
            )
        )
        # Each row's own token, not the next one, as heads on hidden states take it.
        proposer.input_ids[: len(tokens)] = tokens

    def _common(self, target: Any, chunks: Sequence[Chunk], input_rows: int) -> Any:
        requests = len(chunks)
        starts = _starts(chunks)
        lengths = torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32)
        common = shallow_copy(target)
        common.num_reqs = requests
        common.num_actual_tokens, common.num_input_tokens = int(starts[-1]), input_rows
        common.query_start_loc = self._plan.first_query_start_loc[: requests + 1]
        common.query_start_loc_cpu = starts
        common.max_query_len = int(starts.diff().max())
        common.max_seq_len = int(lengths.max())
        common.seq_lens = self._plan.first_lengths[:requests]
        common._seq_lens_cpu = common.seq_lens_cpu = common.seq_lens_cpu_upper_bound = lengths
        before = lengths - starts.diff()
        common.num_computed_tokens_cpu = common._num_computed_tokens_cpu = before
        common.positions = self._proposer.positions[: common.num_actual_tokens]
        common.attn_state = AscendAttentionState.ChunkedPrefill
        common.graph_pad_size = -1
        return common


def _starts(chunks: Sequence[Chunk]) -> torch.Tensor:
    """First row of each chunk, and the end; int32 on the host."""
    lengths = [0, *(chunk.end - chunk.start for chunk in chunks)]
    return torch.tensor(np.cumsum(lengths), dtype=torch.int32)


def make_rebuilding(drafter: Any, cache_config: Any, scheduler_config: Any) -> Rebuilding | None:
    """Of the states of a recurrent draft behind prefix hits; None where there are no hits."""
    if not cache_config.enable_prefix_caching or not isinstance(drafter, RecurrentProposing):
        return None
    return Rebuilding(drafter, scheduler_config.max_num_batched_tokens)
