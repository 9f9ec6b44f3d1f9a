# SPDX-License-Identifier: Apache-2.0
"""Lengths of captured launches that vllm-ascend 0.30.0 keeps as tasks of their graph. No engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl, AscendMetadata

from tests.support import hosts

if hosts.NAME != "vllm_ascend_0_30":
    pytest.skip("0.23.0 notes launches in tables of the process", allow_module_level=True)

from vllm_ascend.attention.attention_v1 import FIAParamProvider
from vllm_ascend.attention.context_parallel import attention_cp
from vllm_ascend.attention.context_parallel.common_cp import CPKVScope
from vllm_ascend.compilation.updatable_graph import GraphUpdateTask, UpdatableGraph

pytestmark = pytest.mark.core

_launches = hosts.module("drafting.launches")
CapturedGraphParams = _launches.CapturedGraphParams
UpdatedLayer = _launches.UpdatedLayer
Dense = hosts.module("backends.dense").Dense
DenseOfShares = hosts.module("drafting.shared_context").DenseOfShares
_task_updates = hosts.module("drafting.task_updates")
DraftGraph = _task_updates.DraftGraph
TaskUpdates = _task_updates.TaskUpdates
NAMES = ("layers.10", "layers.9")
"""Layers in the order of execution, which is not that of their names."""


class Implementation(AscendAttentionBackendImpl):
    def __init__(self):
        pass


LAYERS = {name: UpdatedLayer(Implementation(), Dense(None, None)) for name in NAMES}


def captured(passes):
    """A graph whose launches of ``passes`` were noted, and their metadata."""
    metadata = [
        {
            name: AscendMetadata(
                block_tables=f"table of {name}", actual_seq_lengths_q=[1, 2], seq_lens_list=[0, 0]
            )
            for name in NAMES
        }
        for _ in range(passes)
    ]
    graph = SimpleNamespace(tasks=[], provider_sizes={}, applied=[])
    for number in range(passes):
        for name in NAMES:
            provider = FIAParamProvider(name, None, is_draft_model=True)
            task = GraphUpdateTask(None, {"launch": (number, name)}, provider, number, None, None)
            graph.tasks.append(task)
            graph.provider_sizes[provider] = number + 1
    graph.resolve_tasks = lambda source: UpdatableGraph.resolve_tasks(graph, source)
    graph.update = lambda stream, tasks: graph.applied.extend(task.kwargs for task in tasks)
    return graph, metadata


def test_each_launch_gets_the_lengths_of_its_pass_and_its_layers_table():
    graph, metadata = captured(3)
    updates = TaskUpdates(graph, CapturedGraphParams(), LAYERS, metadata)
    assert updates
    updates.run("stream", None, None, [[5, 6], [7, 8], [9, 10]])
    assert [(given["launch"], given["actual_seq_lengths_kv"]) for given in graph.applied] == [
        ((number, name), lengths)
        for number, lengths in enumerate(([5, 6], [7, 8], [9, 10]))
        for name in NAMES
    ]
    assert {given["block_table"] for given in graph.applied} == {
        f"table of {name}" for name in NAMES
    }
    assert metadata[0]["layers.9"].seq_lens_list == [0, 0], "the captured metadata was changed"


def test_a_missing_task_or_length_is_an_error():
    graph, metadata = captured(2)
    updates = TaskUpdates(graph, CapturedGraphParams(), LAYERS, metadata)
    with pytest.raises(ValueError, match="lengths of 1 passes for a graph of 2"):
        updates.run("stream", None, None, [[5, 6]])
    graph.tasks.pop()
    with pytest.raises(RuntimeError, match="3 tasks of attention were captured, not 4"):
        TaskUpdates(graph, CapturedGraphParams(), LAYERS, metadata)


def test_launches_of_one_operator_share_the_largest_workspace_of_any():
    """vllm-ascend's own graph keeps the first launch's, which is too small for the second."""
    sizes = {}
    for kind in (DraftGraph, UpdatableGraph):
        graph = object.__new__(kind)
        graph.capture_resources = {}
        for size in (512, 2048, 1024):
            given = graph.get_capture_resource("key", lambda size=size: torch.empty(size))
        sizes[kind] = given.numel()
    assert sizes == {DraftGraph: 2048, UpdatableGraph: 512}


def test_where_ranks_share_sequences_a_pass_of_several_rows_has_two_launches():
    """What this rank has of the keys before the pass, and the pass's rows; later passes one."""
    implementation = object.__new__(attention_cp.AscendAttentionDCPImpl)
    parallel = SimpleNamespace(cp_kv_cache_interleave_size=1)
    config = SimpleNamespace(parallel_config=parallel)
    builder = SimpleNamespace(dcp_size=2, dcp_rank=1, vllm_config=config)
    graph, _ = captured(0)
    metadata = []
    for number, (ends, kinds) in enumerate(
        [([4, 8], ("HISTORY", "CURRENT")), ([1, 2], ("FULL",)), ([1, 2], ("FULL",))]
    ):
        decode = attention_cp.AscendMetadataForDecode(block_tables="", actual_seq_lengths_q=ends)
        built = attention_cp.AscendAttentionDCPMetadata(decode=decode)
        metadata.append({"layers.10": built})
        for kind in kinds:
            provider = attention_cp.DCPFIAParamProvider("layers.10", 1, CPKVScope[kind])
            index = graph.provider_sizes.get(provider, 0)
            task = GraphUpdateTask(None, {"pass": number}, provider, index, None, None)
            graph.tasks.append(task)
            graph.provider_sizes[provider] = index + 1
    layers = {"layers.10": UpdatedLayer(implementation, DenseOfShares(builder, None))}
    updates = TaskUpdates(graph, CapturedGraphParams(), layers, metadata)
    updates.run("stream", None, None, [[9, 12], [10, 13], [11, 14]])
    given = [(one["pass"], one["actual_seq_lengths_kv"]) for one in graph.applied]
    assert given == [(0, [2, 4]), (0, [4, 8]), (1, [5, 6]), (2, [5, 7])]
    graph.tasks.pop()
    with pytest.raises(RuntimeError, match="3 tasks of attention were captured, not 4"):
        TaskUpdates(graph, CapturedGraphParams(), layers, metadata)


class Noted(list):
    """Launches that MLA noted beside the graph's tasks."""

    def launches(self, layers, metadata):
        self.extend(layers)
        return ((),) * len(metadata)


def test_launches_of_mla_are_updated_with_the_graphs_tasks(monkeypatch):
    runs = []

    class NotedUpdates:
        def __init__(self, passes):
            self.passes = len(passes)

        def __bool__(self):
            return True

        def run(self, stream, context, config, lengths):
            runs.append((stream, context, config, lengths))

    monkeypatch.setattr(_task_updates, "Updates", NotedUpdates)
    graph, metadata = captured(2)
    latent = {"layers.11": UpdatedLayer(SimpleNamespace(), Dense(None, None))}
    noted = Noted()
    updates = TaskUpdates(graph, noted, LAYERS | latent, metadata)
    assert noted == ["layers.11"]
    updates.run("stream", "context", "config", [[5, 6], [7, 8]])
    assert len(graph.applied) == 4
    assert runs == [("stream", "context", "config", [[5, 6], [7, 8]])]
