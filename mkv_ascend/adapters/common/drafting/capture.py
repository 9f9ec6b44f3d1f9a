# SPDX-License-Identifier: Apache-2.0
"""ACL graphs of a draft's passes.

vllm-ascend keeps the data for updates of captured launches by number of tokens. It assumes one
backend, and layers in the order of their names. Here each graph has its data, in the order of
execution. Each launch is updated by its own layer's backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch_npu
from vllm.forward_context import ForwardContext, get_forward_context, override_forward_context
from vllm.platforms import current_platform
from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.port import Backend
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.host import DraftHost, LaunchUpdates
from mkv_ascend.adapters.common.drafting.launches import CapturedGraphParams, UpdatedLayer
from mkv_ascend.drafting.proposal import Passes

SHARED_SEQUENCES = "ranks share the keys of a sequence, and masks of its rows are made eagerly"


@dataclass(frozen=True)
class CaptureCost:
    """Number of graphs, seconds, and bytes of device memory that the graphs keep."""

    graphs: int = 0
    seconds: float = 0.0
    kept_bytes: int = 0

    def __add__(self, other: CaptureCost) -> CaptureCost:
        return CaptureCost(
            self.graphs + other.graphs,
            self.seconds + other.seconds,
            self.kept_bytes + other.kept_bytes,
        )

    def __str__(self) -> str:
        return f"{self.graphs} in {self.seconds:.1f} s, {self.kept_bytes / (1 << 20):.2f} MiB"


class CaptureMeter:
    """Adds up the cost of captures; ``total``: the cost so far."""

    def __init__(self) -> None:
        self.total = CaptureCost()

    @contextmanager
    def one_graph(self) -> Iterator[None]:
        """Measure the capture of a graph, its preparation included."""
        start, free = time.perf_counter(), _free_bytes()
        yield
        self.total += CaptureCost(1, time.perf_counter() - start, free - _free_bytes())


def _free_bytes() -> int:
    """Free memory of the device, after the allocator has released its cache."""
    torch_npu.npu.synchronize()
    torch_npu.npu.empty_cache()
    free: int = torch_npu.npu.mem_get_info()[0]
    return free


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
        self._graph.replay()

    def update(self, lengths: Sequence[list[int]]) -> None:
        with override_forward_context(self._context):
            self._capturer.run_updates(self._updates, self._context, lengths)


class AscendCapturer:
    """``Capturer`` of one draft.

    Args:
        draft: the draft.
        layers: its attention layers by name, in the order of execution.
        host: makes graphs, and says how their launches are updated.

    ``cost``: the cost of all captures so far.
    """

    def __init__(self, draft: AscendDraft, layers: dict[str, Any], host: DraftHost) -> None:
        self.cost = CaptureMeter()
        self._host, self._draft, self._layers = host, draft, layers
        self._copied = draft.passes.copied_drafts()
        self._stream = torch_npu.npu.Stream()

    def measuring(self) -> AbstractContextManager[None]:
        return self.cost.one_graph()

    def capture(self, passes: Passes, run: Callable[[], None]) -> AscendGraph:
        table = CapturedGraphParams(compares=self._draft.loaded.facts.shares is None)
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
        updated = self._updated_layers()
        metadata: list[Any] = [passes.first, *passes.later()]
        return AscendGraph(
            graph,
            self._host.updates(graph, table, updated, metadata),
            context,
            self,
            reads_lengths=len(updated) < len(self._layers),
        )

    def _updated_layers(self) -> dict[str, UpdatedLayer]:
        """Layers whose launches take lengths on the host; others read them on the device."""
        builders = self._draft.builders
        backends = {name: builders[index] for name, index in self._draft.groups.layers()}
        return {
            name: UpdatedLayer(layer.impl, backend)
            for name, layer in self._layers.items()
            if isinstance(backend := backends[name], Dense) and backend.reads_host_lengths
        }

    def run_updates(
        self, updates: LaunchUpdates, context: ForwardContext, lengths: Sequence[list[int]]
    ) -> None:
        """Update a graph's launches, on the stream that all graphs share."""
        updates.run(self._stream, context, self._draft.loaded.facts.vllm_config, lengths)

    def wait_for_replay(self) -> None:
        torch_npu.npu.current_stream().synchronize()

    def wait_for_copied_drafts(self) -> None:
        """See ``Capturer``.

        The runner copies them on a separate stream, if the scheduler asks for them.
        """
        if self._copied is not None:
            torch_npu.npu.current_stream().wait_event(self._copied)


def why_not_captured(
    draft: AscendDraft, backends: Sequence[Backend], host: DraftHost, *, runs_along: bool
) -> str | None:
    """Why a draft's passes are not captured; None if they are.

    Args:
        backends: of its groups of layers.
        host: where it runs.
        runs_along: whether a rank without requests can replay a graph of padding.
    """
    facts, passes = draft.loaded.facts, draft.passes
    if not facts.vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs():
        return "the target has no full graphs"
    if facts.enforce_eager:
        return "speculative_config says enforce_eager"
    in_step = passes.in_step and not (runs_along and passes.replays_in_step())
    if in_step:
        return "its passes are one with those of other ranks"
    if facts.shares is not None and not host.captures_shares:
        return SHARED_SEQUENCES
    queries = facts.num_speculative_tokens + 1 + facts.new_rows
    for backend in backends:
        reason = backend.why_not_captured(queries)
        if reason is not None:
            return reason
    if facts.in_parallel and not all(one.reads_host_lengths for one in backends):
        return "with parallel drafting its lengths are on the host"
    return None
