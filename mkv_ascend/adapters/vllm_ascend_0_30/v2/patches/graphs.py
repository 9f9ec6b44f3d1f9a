# SPDX-License-Identifier: Apache-2.0
"""The target's full graphs in model runner V2: verify steps, sizes of each K, captured launches."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from vllm.config import CUDAGraphMode
from vllm_ascend.compilation import acl_graph

from mkv_ascend.adapters.common.batch_rows import cover_rows
from mkv_ascend.adapters.common.graphs import for_updates, have_readers, state_of
from mkv_ascend.adapters.patching import patch, replaced

# The target's verify steps in full graphs of model runner V2, whatever proposes the drafts.

PREPARED = "vllm_ascend.worker.v2.model_states.default:AscendModelState.prepare_attn"


@patch(
    name="verify steps in full graphs of model runner V2",
    target=("vllm_ascend.worker.v2.aclgraph_utils:ModelAclGraphManager._graph_relay", PREPARED),
    reads=(
        "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
        "vllm_ascend.worker.v2.input_batch:AscendInputBatch.make_dummy",
    ),
)
def update_for_verify_steps(
    original: Any, manager: Any, backend: Any, graph: Any, *args: Any
) -> Any:
    """Update launches of MLA for as many tokens per request as the graph has, whatever the method.

    K of the configuration is the largest one where K follows the load.
    """
    runner, count = manager.model_runner, graph.uniform_token_count
    seen = for_updates(runner.speculative_config, count - 1 if count else None)
    with replaced(runner, "speculative_config", seen):
        return original(manager, backend, graph, *args)


@update_for_verify_steps.also(target=PREPARED)
def _with_the_state_of_a_chunk(original: Any, state: Any, batch: Any, *args: Any, **kw: Any) -> Any:
    verifies = state.vllm_config.speculative_config is not None
    longest = int(batch.num_scheduled_tokens.max())
    _mode, _tables, _slots, groups = args[:4]
    reads = functools.partial(have_readers, state.vllm_config, groups)
    batch.attn_state = state_of(batch.attn_state, longest, verifies, reads)
    metadata = original(state, batch, *args, **kw)
    return cover_rows(state.vllm_config, metadata, batch.num_tokens_after_padding)


# The target's graphs of each K, where K follows the batch size on model runner V2.


@patch(
    name="graphs of verify steps of each K",
    target="vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager._init_candidates",
    reads=("vllm.v1.worker.gpu.cudagraph_utils:CudaGraphManager.dispatch",),
)
def offer_graphs_of_each_count(original: Callable[[Any], None], manager: Any) -> None:
    """Offer the smallest graph of each K that is large enough, before the graphs of any step."""
    original(manager)
    speculative = manager.vllm_config.speculative_config
    if speculative is None or not speculative.uses_dynamic_speculative_decoding():
        return
    full = sorted(
        manager._capture_descs.get(CUDAGraphMode.FULL, ()), key=lambda graph: graph.num_tokens
    )
    for (tokens, loras), offered in manager._candidates.items():
        smallest: dict[int, Any] = {}
        for graph in full:
            count = graph.uniform_token_count
            if count and graph.num_tokens >= tokens and graph.num_active_loras == loras:
                smallest.setdefault(count, graph)
        own = list(smallest.values())
        offered[:] = own + [graph for graph in offered if graph not in own]


# Captured launches of the target's attention, kept by graph on model runner V2.

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
