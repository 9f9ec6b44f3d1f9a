# SPDX-License-Identifier: Apache-2.0
"""The lengths of captured launches: tasks of their graph, and what MLA notes beside it.

vllm-ascend 0.30.0 keeps launches of fused_infer_attention as tasks of the graph that captures them.
A task asks a source for what changes. Its own source for drafts takes layers in any order but
knows one block table, and its wrapper asks one backend for all launches. MLA still notes its
launches in one table of the process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl
from vllm_ascend.compilation.updatable_graph import UpdatableGraph

from mkv_ascend.adapters.common.drafting.launches import (
    CapturedGraphParams,
    Layers,
    Lengths,
    Updates,
    require_all_captured,
    require_all_passes,
    with_lengths,
)
from mkv_ascend.adapters.patching import override, record
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.shared_context import layer_of


class DraftGraph(UpdatableGraph):
    """vllm-ascend's graph; all launches of an operator get the largest workspace of any of them.

    It asks for the first launch's workspace and uses it for all others, whatever they need, except
    for models that it knows.
    """

    @override(
        record(
            name="workspaces of a draft's captured launches",
            target="vllm_ascend.compilation.updatable_graph:UpdatableGraph.get_capture_resource",
        )
    )
    def get_capture_resource(
        self, key: Hashable, factory: Callable[[], Any], use_max_workspace: bool = False
    ) -> Any:
        """As vllm-ascend's."""
        return super().get_capture_resource(key, factory, use_max_workspace=True)


@dataclass(frozen=True)
class MetadataOfPasses:
    """The source of what tasks take, in the order of the passes.

    Attributes:
        passes: metadata of each pass, by layer.
        numbers: provider -> passes in which it finds what a launch takes; by default, all.
    """

    passes: Sequence[Mapping[str, Any]]
    numbers: Mapping[Any, Sequence[int]] = field(default_factory=dict)

    def get(self, provider: Any) -> list[dict[str, Any]]:
        """What each launch of a layer takes; ``provider`` finds it in metadata."""
        numbers = self.numbers.get(provider, range(len(self.passes)))
        return [provider.resolve(self.passes[number]) for number in numbers]


def passes_of(tasks: Sequence[Any]) -> dict[Any, list[int]]:
    """Provider -> the passes whose launches it serves.

    A layer may be launched in another way in the first pass than in later ones, and twice in it.
    """
    launched: Counter[str] = Counter()
    found: dict[Any, list[int]] = defaultdict(list)
    for task in tasks:
        layer, ends = layer_of(task.provider)
        found[task.provider].append(launched[layer])
        launched[layer] += ends
    return found


class TaskUpdates:
    """``LaunchUpdates`` of one graph."""

    def __init__(
        self,
        graph: UpdatableGraph,
        table: CapturedGraphParams,
        layers: Layers,
        metadata: Sequence[Mapping[str, Any]],
    ) -> None:
        """
        Args: see ``DraftHost.updates``.

        Raises:
            RuntimeError: the capture noted another number of launches.
        """
        self._layers = {
            name: layer
            for name, layer in layers.items()
            if isinstance(layer.implementation, AscendAttentionBackendImpl)
        }
        require_all_captured(len(graph.tasks), "tasks", self._layers, metadata)
        self._graph, self._metadata = graph, metadata
        self._numbers = passes_of(graph.tasks)
        noted = {name: layer for name, layer in layers.items() if name not in self._layers}
        self._noted = Updates(table.launches(noted, metadata))

    def __bool__(self) -> bool:
        """Whether there are launches to update."""
        return bool(self._layers) or bool(self._noted)

    def run(self, stream: Any, context: Any, config: Any, lengths: Lengths) -> None:
        require_all_passes(lengths, len(self._metadata))
        if self._layers:
            given = [
                with_lengths(self._layers, metadata, pass_lengths)
                for metadata, pass_lengths in zip(self._metadata, lengths, strict=True)
            ]
            tasks = self._graph.resolve_tasks(MetadataOfPasses(given, self._numbers))
            self._graph.update(stream, tasks)
        if self._noted:
            self._noted.run(stream, context, config, lengths)
