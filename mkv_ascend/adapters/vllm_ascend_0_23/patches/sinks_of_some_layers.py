# SPDX-License-Identifier: Apache-2.0
"""Full graphs of targets of which some layers have sinks and others have none, such as MiMo-V2.

Another operator serves sinks, and its captured launches are noted with other operands.
vllm-ascend 0.23.0 updates all launches of the target as those of one of the operators. The one for
sinks computes without them as well, so all layers of such a target are captured with it.
"""

from __future__ import annotations

from typing import Any

from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.adapters.patching import patch, replaced


@patch(
    name="sinks of some layers",
    target=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia_v2",
    ),
    reads=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
        "vllm_ascend.attention.utils:cache_graph_workspace",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
    ),
)
def capture_as_if_with_sinks(original: Any, implementation: Any, *args: Any, **kwargs: Any) -> Any:
    """``full_graph_fia`` by the operator for sinks, where the target's other layers have some."""
    own = implementation.sinks is None and not implementation.enable_c8_quant
    if not own or _EXTRA_CTX.is_draft_model or not _EXTRA_CTX.sinks:
        return original(implementation, *args, **kwargs)
    return implementation.full_graph_fia_v2(*args, **kwargs)


@capture_as_if_with_sinks.also(
    target="vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia_v2"
)
def _ask_for_its_own_workspace(original: Any, implementation: Any, *args: Any) -> Any:
    """``full_graph_fia_v2``, which keeps the largest workspace that a launch asks for."""
    with replaced(implementation, "_use_max_workspace_for_fia_graph", True):
        return original(implementation, *args)
