# SPDX-License-Identifier: Apache-2.0
"""The target's verify steps in full graphs of model runner V2, whatever proposes the drafts."""

from __future__ import annotations

import functools
from typing import Any

from mkv_ascend.adapters.common.padded_tokens import cover_rows
from mkv_ascend.adapters.common.target_graphs import for_updates, have_readers, state_of
from mkv_ascend.adapters.patching import patch, replaced

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
