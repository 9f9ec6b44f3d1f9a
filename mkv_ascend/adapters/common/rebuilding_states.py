# SPDX-License-Identifier: Apache-2.0
"""Recurrent drafts read the tokens that the target took from the prefix cache.

Their states at the end of a hit are kept nowhere, so the draft runs over the tokens of the hit. Its
passes are like the first pass of a proposal, but without drafts and without sampling. A pass reads
and writes the cached blocks of its request. Attention layers read the keys before a chunk there,
and write the chunk's own keys again. Other requests with these blocks do not notice: a key depends
only on the tokens before it (up to rounding, if chunks are cut elsewhere). The keys must be written
all the same, because blocks may be hit in the step that fills them, before the draft has run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.drafting.proposers import assembly_of
from mkv_ascend.drafting.draft import TargetOutput, shallow_copy
from mkv_ascend.drafting.lost_states import Chunk, Lost, LostStates, rebuilding_passes
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.proposal import Proposal
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import Planner

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


@dataclass(frozen=True)
class BatchTokens:
    """The requests of a step, and their tokens.

    Attributes:
        rows: the row of each request of the batch.
        of: the tokens of chunks, one behind another, int32 on the device.
    """

    rows: Mapping[str, int]
    of: Callable[[Sequence[Chunk]], torch.Tensor]


def tokens_on_the_host(rows: Mapping[str, int], ids: np.ndarray, device: Any) -> BatchTokens:
    """From token ids on the host, int ``[rows, tokens]``."""

    def of(chunks: Sequence[Chunk]) -> torch.Tensor:
        given = np.concatenate([ids[chunk.row, chunk.start : chunk.end] for chunk in chunks])
        return torch.from_numpy(given.astype(np.int32)).to(device)

    return BatchTokens(rows, of)


class Rebuilding:
    """Runs a draft over tokens that its state does not include.

    Attributes:
        passes, tokens: numbers of extra passes and of their tokens so far.
    """

    def __init__(self, proposal: Proposal, most_tokens: int) -> None:
        """
        Args:
            proposal: the proposal of a draft with recurrent layers.
            most_tokens: largest number of tokens of a pass.

        Raises:
            NotImplementedError: an attention layer of the draft keeps no keys of a hit's beginning.
        """
        draft, strategy = proposal.draft, proposal.strategy
        for group in draft.groups.groups:
            if not isinstance(group.spec, FullAttentionSpec):
                raise NotImplementedError(
                    f"prefix caching is on and the draft has recurrent layers and, in "
                    f"{group.layer_names[0]}, {type(group.spec).__name__}: of a prefix hit it has "
                    "no state, and reads the hit again; keys before a window are gone then. Give "
                    "--no-enable-prefix-caching, or choose a draft of full attention"
                )
        assert isinstance(strategy, RecurrentStrategy)
        self.lost = LostStates()
        self.passes = self.tokens = 0
        self._counts = proposal.counts
        self._most_tokens = min(most_tokens, draft.buffers.token_ids.shape[0])
        self._engine_plan, self._engine_states = proposal.plan, strategy.states
        # A row of these tables is a request that is read, not a row of the batch.
        self._plan = DraftPlan(
            replace(proposal.plan.sizes, later_passes=0),
            [torch.zeros_like(table) for table in proposal.plan.block_tables],
            draft.groups.block_sizes,
        )
        states = strategy.states
        self._states = states.for_graph(states.groups, proposal.plan.sizes.max_requests)
        self._planner = Planner(draft, self._plan, proposal.needs)

    def describe(self) -> str:
        """The cost of prefix hits, for the log."""
        return (
            "Prefix hits are the target's: the draft has no state at the end of one, so it reads "
            f"the tokens of the hit itself, in passes of at most {self._most_tokens} tokens, "
            "before its first proposal for the request."
        )

    def run(self, batch: BatchTokens, common: Any) -> None:
        """Rebuild the missing states of requests in this batch.

        Each is then the state after the last token that the target computed before this step.

        Args:
            batch: the step's requests.
            common: common metadata of the target's pass; its rows are not read.
        """
        most = self._plan.sizes.max_model_len
        noted = self.lost.take(batch.rows)
        lost = [Lost(found.row, min(found.tokens, most)) for found in noted]
        for chunks in rebuilding_passes(lost, self._most_tokens):
            self._run(chunks, batch.of(chunks), common)

    def _run(self, chunks: Sequence[Chunk], token_ids: torch.Tensor, common: Any) -> None:
        planner, draft = self._planner, self._planner.draft
        self._take_tables([chunk.row for chunk in chunks])
        target = self._rows_of(chunks, token_ids, common)
        rows = self._plan.expand(target, draft.buffers)
        # Each row takes its own token, not the next one as with heads on hidden states.
        draft.buffers.token_ids[:rows] = target.token_ids
        batch = planner.first_batch(target, rows)
        cos_sin = planner.needs.cos_sin_rows(batch.positions, None)
        metadata = {
            **planner.needs.first_pass(batch, cos_sin),
            **self._states.first_pass(batch, None),
        }
        with draft.running(metadata, batch):
            draft.forward(batch.input_rows)
            self._states.commit(len(chunks))
        self.passes += 1
        self._counts.prefix_hit_passes += 1
        self.tokens += rows

    def _take_tables(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, dtype=torch.int64).to(self._plan.counts.device)
        tables = zip(self._plan.block_tables, self._engine_plan.block_tables, strict=True)
        for own, table in tables:
            own[: len(rows)] = table[index]
        self._states.take_rows(self._engine_states, index)

    def _rows_of(
        self, chunks: Sequence[Chunk], token_ids: torch.Tensor, common: Any
    ) -> TargetOutput:
        """The chunks, as rows of a target that has computed the tokens before them."""
        device = self._plan.counts.device
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        starts = _starts(chunks)
        lengths = torch.tensor([chunk.end for chunk in chunks], dtype=torch.int32)
        own = shallow_copy(common)
        own.num_computed_tokens_cpu = own._num_computed_tokens_cpu = lengths - starts.diff()
        own.max_seq_len = int(lengths.max())
        own.attn_state = AscendAttentionState.ChunkedPrefill
        own.graph_pad_size = -1
        return TargetOutput(
            token_ids=token_ids,
            positions=torch.from_numpy(positions.astype(np.int32)).to(device),
            next_token_ids=torch.zeros(len(chunks), dtype=torch.int32, device=device),
            hidden_states=None,
            num_rejected=None,
            query_start_loc=starts.to(device),
            query_start_loc_host=starts,
            host_lengths=lengths,
            length_bounds=lengths,
            longest_row=int(starts.diff().max()),
            common=own,
        )


def _starts(chunks: Sequence[Chunk]) -> torch.Tensor:
    """First row of each chunk, and the end; int32 on the host."""
    lengths = [0, *(chunk.end - chunk.start for chunk in chunks)]
    return torch.tensor(np.cumsum(lengths), dtype=torch.int32)


def make_rebuilding(drafter: Any, cache_config: Any, scheduler_config: Any) -> Rebuilding | None:
    """Make the ``Rebuilding`` of a recurrent draft; None if there are no prefix hits."""
    assembly = assembly_of(drafter)
    if not cache_config.enable_prefix_caching or assembly is None:
        return None
    if not isinstance(assembly.proposal.strategy, RecurrentStrategy):
        return None
    return Rebuilding(assembly.proposal, scheduler_config.max_num_batched_tokens)
