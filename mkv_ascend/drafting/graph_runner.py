# SPDX-License-Identifier: Apache-2.0
"""Device graphs of a proposal's passes, one per number of requests.

Where the number of draft tokens follows the load, there is one per number of tokens that a request
verifies and drafts, too.

Each step's data reaches a graph in two ways. Inputs, positions, slots and block tables lie in
buffers with fixed addresses; a launch outside the graph fills them. Lengths are lists on the host
that attention takes as arguments. So each captured launch of attention waits for an event. It is
updated with this proposal's lengths before the event is recorded: for the first pass at once, for
later passes when their lengths have been copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from mkv_ascend.drafting.counts import Eager, GraphShape
from mkv_ascend.drafting.draft import LaterPasses, TargetOutput
from mkv_ascend.drafting.proposal import Passes, Proposal, limited, with_copied_metadata


class Graph(Protocol):
    """One captured graph.

    ``updates_lengths``: whether its launches need lengths from the host in each replay.
    ``reads_lengths``: whether its launches read lengths on the device, padding included.
    """

    updates_lengths: bool
    reads_lengths: bool

    def replay(self) -> None:
        """Launch the graph."""

    def update(self, lengths: Sequence[list[int]]) -> None:
        """Give all launches the lengths of their passes, and let the replay continue."""


class Capturer(Protocol):
    """How the host captures graphs."""

    def measuring(self) -> AbstractContextManager[None]:
        """Measure what a capture costs, its preparation included."""

    def capture(self, passes: Passes, run: Callable[[], None]) -> Graph:
        """Capture ``run``, inside the draft's forward context."""

    def wait_for_replay(self) -> None:
        """Let the host wait until the replay before this one has finished."""

    def wait_for_copied_drafts(self) -> None:
        """Let the device wait until the last draft tokens are copied; a replay overwrites them."""


class InStep(NamedTuple):
    """What ranks agreed on that run the passes of a proposal together.

    ``requests``: the most that any of them has, where each replays a graph of a verify step; None:
    all of them run eagerly.
    """

    requests: int | None


@dataclass(frozen=True)
class CapturedPasses:
    """The passes of a proposal for ``requests`` requests.

    Attributes:
        rows: rows of the first pass, or of the context.
        later: number of passes after the first.
        drafted: int64 [requests, K]; a replay writes the draft tokens here, from the left.
        passes: the captured passes, kept because a graph does not keep its tensors alive.
    """

    requests: int
    rows: int
    later: int
    graph: Graph
    drafted: torch.Tensor
    passes: Sequence[Passes]


class GraphRunner:
    """Captures and replays the passes of a proposal.

    ``captured``: graphs by what they serve. ``replays``: number of replays so far.
    """

    def __init__(self, proposal: Proposal, capturer: Capturer) -> None:
        self.proposal = proposal
        self.capturer = capturer
        self.captured: dict[GraphShape, CapturedPasses] = {}
        self.replays = 0

    def shape(
        self, requests: int, verified: int | None = None, drafted: int | None = None
    ) -> GraphShape:
        """The shape of a graph; K tokens are verified and drafted where no number is given.

        A draft without later passes drafts all of its tokens in any case.
        """
        strategy = self.proposal.strategy
        every = strategy.tokens
        if drafted is None or not strategy.later_passes:
            drafted = every
        return GraphShape(requests, every if verified is None else verified, drafted)

    @torch.inference_mode()
    def capture(self, shape: GraphShape) -> None:
        """Capture the passes for batches of this shape, or of fewer requests.

        The engine's steps may hold such a batch and not the rows of its first pass, which has more.
        Then none is captured, and smaller batches that it would have served run eagerly.
        """
        if shape not in self.captured and self._fits(shape):
            with self.capturer.measuring():
                self.captured[shape] = self._captured(shape)

    def _fits(self, shape: GraphShape) -> bool:
        """Whether the buffers have a row for each one of the first pass."""
        sizes, tokens = self.proposal.plan.sizes, shape.requests * (shape.verified + 1)
        return sizes.first_pass_rows(tokens, shape.requests) <= sizes.max_tokens

    def _captured(self, shape: GraphShape) -> CapturedPasses:
        proposal, strategy, requests = self.proposal, self.proposal.strategy, shape.requests
        target = self._verify_step(requests, shape.verified + 1)
        rows = strategy.lay_out(target)
        passes = limited(strategy.plan_captured(target, rows), shape.drafted)
        # Not from the graphs' pool: other graphs write to its memory.
        drafted = torch.zeros(
            (requests, strategy.tokens), dtype=torch.int64, device=proposal.plan.counts.device
        )
        kept = [passes]

        def run(passes: Passes = passes) -> None:
            refreshed = passes.refresh(passes)
            kept.append(refreshed)
            proposal.draft.use(refreshed.first)
            tokens = proposal.run(refreshed)
            drafted[:, : tokens.shape[1]].copy_(tokens)

        with proposal.draft.running(passes.first, passes.batch):
            # Run once outside a graph: objects made at the first call must outlive the capture.
            # Not what layers keep in metadata, such as converted slots: the graph computes that.
            run(with_copied_metadata(passes))
        graph = self.capturer.capture(passes, run)
        return CapturedPasses(requests, rows, len(passes.positions), graph, drafted, kept)

    def _verify_step(self, requests: int, each: int) -> TargetOutput:
        """A made-up verify step with as many tokens before it as in it, so it begins no request.

        Args:
            each: tokens of a request.
        """
        plan = self.proposal.plan
        numbers = plan.row_numbers.new_tensor(range(each, 2 * each))
        lengths = torch.full((requests,), 2 * each, dtype=torch.int32, device="cpu")
        positions = numbers.repeat(requests)
        rope = self.proposal.draft.buffers.rope_positions
        return TargetOutput(
            token_ids=numbers.new_zeros(requests * each),
            positions=positions,
            next_token_ids=numbers.new_zeros(requests),
            hidden_states=None,
            num_rejected=None,
            query_start_loc=plan.counts[: requests + 1] * each,
            query_start_loc_host=plan.host_counts[: requests + 1] * each,
            host_lengths=lengths,
            length_bounds=lengths,
            longest_row=each,
            rope_positions=None if rope is None else positions.repeat(rope.shape[0], 1),
        )

    def propose(
        self, target: TargetOutput, tokens: int | None = None, in_step: InStep | None = None
    ) -> torch.Tensor | Eager:
        """Draft by a graph; int64 [B, K]. The reason if no graph serves this batch.

        Args:
            tokens: to draft for each request, in the columns on the left; None: K.
            in_step: given where other ranks run these passes, too.
        """
        if in_step is None:
            captured = self.graph_for(target, tokens)
        else:
            captured = self.graph_in_step(in_step)
        if isinstance(captured, Eager):
            return captured
        strategy = self.proposal.strategy
        rows = strategy.lay_out(target, captured.rows)
        strategy.take_for_graph(target, rows)

        def lengths(later: LaterPasses | None) -> list[list[int]]:
            return strategy.lengths(target, captured.requests - target.requests, later)

        return self._replay(captured, target.requests, lengths)

    @torch.inference_mode()
    def run_along(self, in_step: InStep) -> torch.Tensor | None:
        """Replay padding alone, on a rank without requests; int64 [requests of the graph, K].

        None: the other ranks run eagerly.
        """
        captured = self.graph_in_step(in_step)
        if isinstance(captured, Eager):
            return None
        draft = self.proposal.draft
        self.proposal.plan.lay_out_padding(draft.buffers, captured.rows, captured.requests)
        draft.embed(captured.rows)
        nothing = [0] * captured.requests
        self._replay(captured, 0, lambda _: [nothing] * (1 + captured.later))
        return captured.drafted

    def graph_in_step(self, in_step: InStep) -> CapturedPasses | Eager:
        """The smallest graph for the most requests of a rank: the same on all of them."""
        every = self.proposal.strategy.tokens
        asked = in_step.requests
        enough = [
            shape
            for shape in self.captured
            if asked is not None and shape.requests >= asked and shape[1:] == (every, every)
        ]
        return self.captured[min(enough)] if enough else Eager.OTHER_RANKS

    def graph_for(self, target: TargetOutput, tokens: int | None = None) -> CapturedPasses | Eager:
        """The smallest graph for a batch whose requests all verify as many draft tokens."""
        # As a list: a few operations on a small tensor take longer than all the rest here.
        starts: list[int] = target.query_start_loc_host.tolist()
        each = starts[1]
        asked = self.shape(target.requests, each - 1, tokens)
        alike = [shape for shape in self.captured if shape[1:] == asked[1:]]
        enough = [shape for shape in alike if shape.requests >= asked.requests]
        if starts != [each * request for request in range(len(starts))]:
            return Eager.MIXED_BATCH
        if not enough:
            return Eager.TOO_MANY_REQUESTS if alike else Eager.MIXED_BATCH
        if not self.proposal.strategy.may_replay(target):
            return Eager.DRAFT_PREFILL
        return self.captured[min(enough)]

    def _replay(
        self,
        captured: CapturedPasses,
        requests: int,
        lengths_of: Callable[[LaterPasses | None], list[list[int]]],
    ) -> torch.Tensor:
        """Replay the graph; requests behind the first ``requests`` are padding.

        Args:
            lengths_of: gives lengths of all passes, once those of later ones are on the host.
        """
        plan, graph, capturer = self.proposal.plan, captured.graph, self.capturer
        if graph.reads_lengths:
            plan.pad_first_pass(requests, captured.requests)
        later = None
        if plan.sizes.later_passes:
            later = plan.plan_later(captured.requests, requests)
        # Launches may be updated once the replay before this one has finished.
        if graph.updates_lengths and later is not None:
            plan.copy_lengths(later)  # the host waits for this copy below
        elif graph.updates_lengths:
            capturer.wait_for_replay()
        capturer.wait_for_copied_drafts()
        graph.replay()
        self.replays += 1
        self.proposal.counts.passes += 1 + captured.later
        if graph.updates_lengths:
            if later is not None:
                plan.wait_for_lengths()
            graph.update(lengths_of(later)[: 1 + captured.later])
        return captured.drafted[:requests]
