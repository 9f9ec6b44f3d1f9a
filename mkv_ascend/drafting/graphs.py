# SPDX-License-Identifier: Apache-2.0
"""The passes of a proposal in one ACL graph per number of requests.

What a step changes reaches a graph in two ways. Inputs, positions, slots and block tables lie in
buffers that stay where they are, and a launch outside the graph fills them. Lengths are handed to
attention as lists on the host, so each captured launch of it waits for an event, and is given this
proposal's lengths before the event is recorded: of the first pass at once, of later passes when
they have been copied to the host.

vllm-ascend 0.23.0 keeps what is needed for that in a global table by number of tokens, for layers
in the order of their names and of one backend. Here each graph has a table of its own, in the order
of execution, and each launch is updated by its own layer's backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch_npu
from vllm.forward_context import (
    ForwardContext,
    get_forward_context,
    override_forward_context,
)
from vllm.platforms import current_platform
from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.drafting.capture_cost import CaptureMeter
from mkv_ascend.drafting.launches import OneTable, is_updated, launch_kind
from mkv_ascend.drafting.plan import LaterSteps
from mkv_ascend.drafting.steps import Passes
from mkv_ascend.drafting.updates import Updates


@dataclass(frozen=True)
class CapturedPasses:
    """The passes of a proposal for ``requests`` requests.

    Attributes:
        rows: of the first pass.
        drafted: int64 [requests, K], where a replay writes the draft tokens.
        updates: by which the launches of attention take lengths, in the order of execution.
        passes: what they ran with, kept because the graph does not keep its tensors.
        context: the forward context of the capture, in which launches are updated, too.
        reads_lengths: whether some launch reads lengths on the device, those of padding, too.
    """

    requests: int
    rows: int
    graph: Any
    drafted: torch.Tensor
    updates: Updates
    passes: Passes
    context: ForwardContext
    reads_lengths: bool


def why_not_captured(proposer: Any) -> str | None:
    """Why a draft's passes are not captured; None: they are."""
    runner, groups = proposer.runner, proposer.draft_groups.groups
    if not runner.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return "the target has no full graphs"
    if proposer.asked_to_run_eagerly:
        return "speculative_config says enforce_eager"
    if proposer.uses_mrope or proposer.supports_mm_inputs:
        return "it takes positions or embeddings of images"
    if runner.dp_size > 1 or runner.dynamic_eplb or proposer.later_rows(2, 1) > 1:
        return "its passes are one with those of other ranks"
    queries = proposer.num_speculative_tokens + 1 + proposer.net_num_new_slots_per_request
    for group, of_group in zip(groups, proposer.draft_attn_groups, strict=True):
        kind = launch_kind(group.backend.get_impl_cls())
        if kind is None:
            return f"launches of {group.backend.__name__} are not captured yet"
        reason = kind.why_not(queries, of_group.get_metadata_builder())
        if reason is not None:
            return reason
        if proposer.parallel_drafting and not kind.is_updated:
            return "with parallel drafting its lengths are on the host"
    return None


class DraftGraphs:
    """Captures and replays the passes of one proposer, ``Replaying``.

    ``captured``: by number of requests. ``replays``: how often one was replayed. ``cost``: of the
    captures.
    """

    def __init__(self, proposer: Any) -> None:
        self.proposer = proposer
        self.captured: dict[int, CapturedPasses] = {}
        self.replays = 0
        self.cost = CaptureMeter()
        self._update_stream = torch_npu.npu.Stream()

    @torch.inference_mode()
    def capture(self, requests: int) -> None:
        """Capture the passes for so many requests, each of which verifies K draft tokens."""
        with self.cost.one_graph():
            self.captured[requests] = self._captured(requests)

    def _captured(self, requests: int) -> CapturedPasses:
        proposer = self.proposer
        rows, passes = proposer.passes_to_capture(requests)
        later = passes.later()
        every = replace(passes, later=lambda: later)
        table = OneTable()
        # Not of the graphs' pool, whose memory other graphs write to.
        drafted = torch.empty(
            requests, proposer.num_speculative_tokens, dtype=torch.int64, device=proposer.device
        )
        with proposer._forward_context(passes.first, rows, rows, None):
            # Once outside a graph: what is made at the first call must outlive the capture.
            proposer.run_passes(every, rows, requests)
        graph = torch_npu.npu.NPUGraph()
        capture = torch_npu.npu.graph(graph, pool=current_platform.get_global_graph_pool())
        # The context in the graph: it sets the mask of live rows by which experts communicate.
        of_draft = proposer._forward_context(passes.first, rows, rows, None)
        with capture, table.in_use(), of_draft:
            context = get_forward_context()
            _EXTRA_CTX.capturing = True
            again = proposer.made_again(every)
            context.attn_metadata = again.first
            drafted.copy_(proposer.run_passes(again, rows, requests))
            _EXTRA_CTX.capturing, _EXTRA_CTX.num_tokens = False, rows
            context.attn_metadata = None
        metadata = [passes.first, *later]
        layers = proposer.vllm_config.compilation_config.static_forward_context
        updated = [name for name in proposer.attention_layers() if is_updated(layers[name].impl)]
        launches = table.launches(updated, metadata, layers)
        return CapturedPasses(
            requests,
            rows,
            graph,
            drafted,
            Updates(launches),
            again,
            context,
            reads_lengths=len(updated) < len(proposer.attention_layers()),
        )

    def for_batch(self, common: Any, requests: int) -> CapturedPasses | None:
        """The graph for a batch; None where there is none.

        Args:
            common: of the target's pass. A graph is for requests that all verify K draft tokens.
        """
        enough = [size for size in self.captured if size >= requests]
        if not enough:
            return None
        starts = common.query_start_loc_cpu[: requests + 1]
        tokens = self.proposer.num_speculative_tokens + 1
        uniform = bool((starts[1:] - starts[:-1] == tokens).all())
        if not uniform or not self.proposer.may_replay(common, requests):
            return None
        return self.captured[min(enough)]

    def replay(self, passes: CapturedPasses, requests: int, lengths: Sequence[int]) -> torch.Tensor:
        """Draft by a graph; the first pass's inputs are in place.

        Args:
            requests: that are live; the graph's others are padding.
            lengths: of each of them in the first pass.

        Returns:
            int64 [requests, K].
        """
        plan = self.proposer.draft_plan
        if passes.reads_lengths:
            plan.pad_first_pass(requests, passes.requests)
        steps = None
        if plan.sizes.later_steps:
            steps = plan.plan_steps(passes.requests, requests)
        if passes.updates.calls:
            self._before_updates(steps)
        self._wait_for_drafts_on_the_host()
        passes.graph.replay()
        self.replays += 1
        if passes.updates.calls:
            self._update(passes, [*lengths, *[0] * (passes.requests - requests)], steps)
        return passes.drafted[:requests]

    def _before_updates(self, steps: LaterSteps | None) -> None:
        """See to it that tasks are updated when the replay before this one is over."""
        if steps is None:
            torch_npu.npu.current_stream().synchronize()
        else:
            self.proposer.copy_lengths(steps)  # which the host waits for

    def _update(self, passes: CapturedPasses, first: list[int], steps: LaterSteps | None) -> None:
        """Give launches the lengths of their passes, ``first`` and those that were planned."""
        proposer, of_passes = self.proposer, [first]
        if steps is not None:
            proposer.wait_for_lengths()
            of_passes = proposer.lengths_of_passes(first, steps)
        with override_forward_context(passes.context):
            passes.updates.run(self._update_stream, passes.context, proposer.vllm_config, of_passes)

    def _wait_for_drafts_on_the_host(self) -> None:
        """Have the replay wait until its last draft tokens were copied: it writes over them.

        The runner copies them on a stream of its own, when the scheduler asks for them.
        """
        copied = self.proposer.runner.draft_token_ids_event
        if copied is not None:
            torch_npu.npu.current_stream().wait_event(copied)
