# SPDX-License-Identifier: Apache-2.0
"""Captured launches of the target's attention, kept by graph on model runner V2."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from vllm.config import CUDAGraphMode
from vllm_ascend.compilation import acl_graph

from mkv_ascend.adapters.patching import patch, replaced

LAUNCHES = "mkv_ascend_launches"
"""Attribute of a manager of graphs: the parameters of captured launches of each graph."""

UPDATED = "vllm_ascend.worker.v2.aclgraph_utils:ModelAclGraphManager._graph_relay"


@patch(
    name="captured launches of each graph of the target",
    target=("vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.capture", UPDATED),
    reads=(
        "vllm_ascend.compilation.acl_graph:GraphParams",
        "vllm_ascend.compilation.acl_graph:get_graph_params",
        "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
    ),
)
def note_by_graph(
    original: Callable[..., None], manager: Any, create_forward: Callable[..., Any], *args: Any
) -> None:
    """Give each full graph parameters of its own before it is captured."""
    launches: dict[Any, acl_graph.GraphParams] = {}
    setattr(manager, LAUNCHES, launches)

    def create(graph: Any, warmup: bool) -> Any:
        if not warmup and graph.cg_mode is CUDAGraphMode.FULL:
            launches[graph] = acl_graph._graph_params = no_launches()
        return create_forward(graph, warmup)

    with replaced(acl_graph, "_graph_params", acl_graph._graph_params):
        original(manager, create, *args)


@note_by_graph.also(target=UPDATED)
def _update_its_own(
    original: Callable[..., Any], manager: Any, backend: Any, graph: Any, *args: Any
) -> Any:
    own = getattr(manager, LAUNCHES).get(graph)
    with nullcontext() if own is None else replaced(acl_graph, "_graph_params", own):
        return original(manager, backend, graph, *args)


def no_launches() -> acl_graph.GraphParams:
    """Parameters of a graph, before any launch is noted."""
    return acl_graph.GraphParams(defaultdict(list), {}, defaultdict(list), defaultdict(list))
