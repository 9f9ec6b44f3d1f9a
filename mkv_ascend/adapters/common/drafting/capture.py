# SPDX-License-Identifier: Apache-2.0
"""ACL graphs of a draft's passes.

vllm-ascend keeps the data for updates of captured launches by number of tokens. It assumes one
backend, and layers in the order of their names. Here each graph has its data, in the order of
execution. Each launch is updated by its own layer's backend.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch_npu
from vllm.config import set_current_vllm_config
from vllm.forward_context import ForwardContext, get_forward_context, override_forward_context
from vllm.platforms import current_platform
from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.adapters.common.drafting.capture_adapters import (
    CapturedGraphParams,
    capture_adapter,
    is_updated,
)
from mkv_ascend.adapters.common.drafting.capture_cost import CaptureMeter
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.host import DraftHost, LaunchUpdates
from mkv_ascend.drafting.passes import Passes

SHARED_SEQUENCES = "ranks share the keys of a sequence, and masks of its rows are made eagerly"


class AscendGraph:
    """``Graph`` of the passes of one proposal.

    Args:
        graph: torch_npu's graph.
        updates: give the launches of attention their lengths, in the order of execution.
        context: the forward context of the capture; launches are also updated in it.
        capturer: the capturer that captured it.
        reads_lengths: whether any launch reads lengths on the device.
    """

    def __init__(
        self,
        graph: Any,
        updates: LaunchUpdates,
        context: ForwardContext,
        capturer: AscendCapturer,
        *,
        reads_lengths: bool,
    ) -> None:
        self.reads_lengths = reads_lengths
        self.updates_lengths = bool(updates)
        self._graph, self._updates, self._context = graph, updates, context
        self._capturer = capturer

    def replay(self) -> None:
        """See ``Graph``."""
        self._graph.replay()

    def update(self, lengths: Sequence[list[int]]) -> None:
        """See ``Graph``."""
        with override_forward_context(self._context):
            self._capturer.run_updates(self._updates, self._context, lengths)


class AscendCapturer:
    """``Capturer`` of one proposer's draft.

    Args:
        proposer: vllm-ascend's proposer.
        draft: its draft.
        layers: its attention layers by name, in the order of execution.
        host: makes graphs, and says how their launches are updated.

    ``cost``: the cost of all captures so far.
    """

    def __init__(
        self, proposer: Any, draft: AscendDraft, layers: dict[str, Any], host: DraftHost
    ) -> None:
        self.cost = CaptureMeter()
        self._host = host
        self._proposer, self._draft, self._layers = proposer, draft, layers
        self._stream = torch_npu.npu.Stream()

    def measuring(self) -> AbstractContextManager[None]:
        """See ``Capturer``."""
        return self.cost.one_graph()

    def capture(self, passes: Passes, run: Callable[[], None]) -> AscendGraph:
        """See ``Capturer``."""
        table = CapturedGraphParams(compares=not self._draft.shares_sequences())
        graph = self._host.new_graph()
        capture = torch_npu.npu.graph(graph, pool=current_platform.get_global_graph_pool())
        # The graph includes entering the context: it sets the mask of live rows for experts.
        draft_context = self._draft.running(passes.first, passes.batch)
        with capture, table.recorded_here(), draft_context:
            context = get_forward_context()
            _EXTRA_CTX.capturing = True
            run()
            _EXTRA_CTX.capturing, _EXTRA_CTX.num_tokens = False, passes.batch.rows
            context.attn_metadata = None
        updated = [name for name, layer in self._layers.items() if is_updated(layer)]
        metadata: list[Any] = [passes.first, *passes.later()]
        return AscendGraph(
            graph,
            self._host.updates(graph, table, updated, metadata, self._layers),
            context,
            self,
            reads_lengths=len(updated) < len(self._layers),
        )

    def run_updates(
        self, updates: LaunchUpdates, context: ForwardContext, lengths: Sequence[list[int]]
    ) -> None:
        """Update a graph's launches, on the stream that all graphs share."""
        updates.run(self._stream, context, self._proposer.vllm_config, lengths)

    def wait_for_replay(self) -> None:
        """See ``Capturer``."""
        torch_npu.npu.current_stream().synchronize()

    def wait_for_copied_drafts(self) -> None:
        """See ``Capturer``.

        The runner copies them on a separate stream, if the scheduler asks for them.
        """
        copied = self._proposer.runner.draft_token_ids_event
        if copied is not None:
            torch_npu.npu.current_stream().wait_event(copied)


def why_not_captured(
    proposer: Any,
    draft: AscendDraft,
    attention_groups: Sequence[Any],
    *,
    enforce_eager: bool,
    runs_along: bool,
) -> str | None:
    """Why a draft's passes are not captured; None if they are.

    Args:
        runs_along: whether a rank without requests can replay a graph of padding.
    """
    runner = proposer.runner
    if not runner.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return "the target has no full graphs"
    if enforce_eager:
        return "speculative_config says enforce_eager"
    in_step = draft.runs_in_step() and not (runs_along and draft.replays_in_step())
    if in_step:
        return "its passes are one with those of other ranks"
    if draft.shares_sequences() and not proposer.draft_host.captures_shares:
        return SHARED_SEQUENCES
    queries = proposer.num_speculative_tokens + 1 + proposer.net_num_new_slots_per_request
    groups = zip(draft.groups.groups, attention_groups, draft.builders, strict=True)
    for group, attention_group, builder in groups:
        with set_current_vllm_config(proposer.vllm_config):  # some backends ask it
            implementation = attention_group.backend.get_impl_cls()
        if implementation is None and (builder.shares or builder.builds_in_graphs):
            continue  # a cache without attention of its own, that of an indexer
        adapter = None if implementation is None else capture_adapter(implementation)
        if adapter is None:
            return f"launches of {group.backend.__name__} are not captured yet"
        reason = adapter.why_not(
            queries,
            attention_group.get_metadata_builder(),
            known=builder.shares or builder.builds_in_graphs,
        )
        if reason is not None:
            return reason
        if proposer.parallel_drafting and not adapter.is_updated:
            return "with parallel drafting its lengths are on the host"
    return None
