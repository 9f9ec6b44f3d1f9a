# SPDX-License-Identifier: Apache-2.0
"""The passes of a proposal in one graph of the device per number of requests.

What a step changes reaches a graph in two ways. Inputs, positions, slots and block tables lie in
buffers that stay where they are, and a launch outside the graph fills them. Lengths are handed to
attention as lists on the host, so each captured launch of it waits for an event, and is given this
proposal's lengths before the event is recorded: of the first pass at once, of later passes when
they have been copied to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from mkv_ascend.drafting.draft import TargetOutput
from mkv_ascend.drafting.passes import Passes
from mkv_ascend.drafting.proposal import Proposal


class Graph(Protocol):
    """One captured graph.

    ``updates_lengths``: whether launches in it take lengths of the host in each replay.
    ``reads_lengths``: whether launches read lengths on the device, those of padding, too.
    """

    updates_lengths: bool
    reads_lengths: bool

    def replay(self) -> None:
        """Launch it."""

    def update(self, lengths: Sequence[list[int]]) -> None:
        """Give all launches the lengths of their passes, and let the replay go on through them."""


class Capturer(Protocol):
    """The host's way to capture."""

    def measuring(self) -> AbstractContextManager[None]:
        """Measures what a capture costs, with what runs before it for its sake."""

    def capture(self, passes: Passes, run: Callable[[], None]) -> Graph:
        """Capture ``run``, inside the draft's forward context."""

    def wait_for_replay(self) -> None:
        """Have the host wait until the replay before this one is over."""

    def wait_for_copied_drafts(self) -> None:
        """Have the device wait until its last draft tokens were copied: a replay writes there."""


@dataclass(frozen=True)
class CapturedPasses:
    """The passes of a proposal for ``requests`` requests.

    Attributes:
        rows: of the first pass, or of the context.
        drafted: int64 [requests, K], where a replay writes the draft tokens.
        passes: what was captured, kept because a graph does not keep its tensors.
    """

    requests: int
    rows: int
    graph: Graph
    drafted: torch.Tensor
    passes: Sequence[Passes]


class GraphRunner:
    """Captures and replays the passes of a proposal.

    ``captured``: by number of requests. ``replays``: how often one was replayed.
    """

    def __init__(self, proposal: Proposal, capturer: Capturer) -> None:
        self.proposal = proposal
        self.capturer = capturer
        self.captured: dict[int, CapturedPasses] = {}
        self.replays = 0

    @torch.inference_mode()
    def capture(self, requests: int) -> None:
        """Capture the passes for so many requests, each of which verifies K draft tokens."""
        with self.capturer.measuring():
            self.captured[requests] = self._captured(requests)

    def _captured(self, requests: int) -> CapturedPasses:
        proposal, strategy = self.proposal, self.proposal.strategy
        target = self._verify_step(requests)
        rows = strategy.lay_out(target)
        passes = strategy.plan_captured(target, rows)
        # Not of the graphs' pool, whose memory other graphs write to.
        drafted = torch.empty(
            (requests, strategy.tokens), dtype=torch.int64, device=proposal.plan.counts.device
        )
        kept = [passes]

        def run() -> None:
            refreshed = passes.refresh(passes)
            kept.append(refreshed)
            proposal.draft.use(refreshed.first)
            drafted.copy_(proposal.run(refreshed))

        with proposal.draft.running(passes.first, passes.batch):
            # Once outside a graph: what is made at the first call must outlive the capture.
            run()
        graph = self.capturer.capture(passes, run)
        return CapturedPasses(requests, rows, graph, drafted, kept)

    def _verify_step(self, requests: int) -> TargetOutput:
        """A made-up one, with as many tokens before it as it has: it begins no request."""
        plan, each = self.proposal.plan, self.proposal.strategy.tokens + 1
        numbers = plan.row_numbers.new_tensor(range(each, 2 * each))
        lengths = torch.full((requests,), 2 * each, dtype=torch.int32)
        return TargetOutput(
            token_ids=numbers.new_zeros(requests * each),
            positions=numbers.repeat(requests),
            next_token_ids=numbers.new_zeros(requests),
            hidden_states=None,
            num_rejected=None,
            query_start_loc=plan.counts[: requests + 1] * each,
            query_start_loc_host=plan.host_counts[: requests + 1] * each,
            host_lengths=lengths,
            length_bounds=lengths,
            longest_row=each,
        )

    def propose(self, target: TargetOutput) -> torch.Tensor | None:
        """Draft by a graph; int64 [B, K]. None: there is none for this batch."""
        captured = self.graph_for(target)
        if captured is None:
            return None
        strategy = self.proposal.strategy
        rows = strategy.lay_out(target, captured.rows)
        strategy.take_for_graph(target, rows)
        return self._replay(captured, target)

    def graph_for(self, target: TargetOutput) -> CapturedPasses | None:
        """The smallest graph for a batch whose requests all verify K draft tokens."""
        enough = [size for size in self.captured if size >= target.requests]
        if not enough:
            return None
        strategy = self.proposal.strategy
        rows = target.query_start_loc_host.diff()
        if not bool((rows == strategy.tokens + 1).all()) or not strategy.may_replay(target):
            return None
        return self.captured[min(enough)]

    def _replay(self, captured: CapturedPasses, target: TargetOutput) -> torch.Tensor:
        """Replay; the requests that ``target`` does not have are padding."""
        plan, graph, capturer = self.proposal.plan, captured.graph, self.capturer
        if graph.reads_lengths:
            plan.pad_first_pass(target.requests, captured.requests)
        later = None
        if plan.sizes.later_passes:
            later = plan.plan_later(captured.requests, target.requests)
        # Launches take lengths when the replay before this one is over.
        if graph.updates_lengths and later is not None:
            plan.copy_lengths(later)  # which the host waits for
        elif graph.updates_lengths:
            capturer.wait_for_replay()
        capturer.wait_for_copied_drafts()
        graph.replay()
        self.replays += 1
        if graph.updates_lengths:
            if later is not None:
                plan.wait_for_lengths()
            padding = captured.requests - target.requests
            graph.update(self.proposal.strategy.lengths(target, padding, later))
        return captured.drafted[: target.requests]
